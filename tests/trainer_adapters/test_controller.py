"""From what is wanted to what is in force, within what the user allowed."""

import pytest

from entrostat.trainer_adapters.board import Board
from entrostat.trainer_adapters.controller import Controller, Intent
from entrostat.wire.messages import ActiveIntervention, DesiredState, Mode, Permissions, Thresholds

EVERYTHING = ["scope", "kl_cov", "clip_cov", "clip_higher", "selective_kl", "entropy_bonus", "learning_rate"]


class Room:
    """A controller, its board, and what it said."""

    def __init__(self, mode="act", **permissions):
        self.events = []
        self.board = Board()
        allowed = Permissions(mode=Mode(mode), **({"allow": EVERYTHING} | permissions))
        self.controller = Controller(allowed, self.board, self._say)
        self.version = 0

    def _say(self, kind, message, step, detail):
        self.events.append((kind, step, detail.get("name"), message))

    def step(self, step, *wanted, armed=True, **heard):
        self.version += 1
        desired = DesiredState(version=self.version, interventions=list(wanted), is_armed=armed)
        self.controller.at_boundary(step, Intent(desired, **heard))
        return dict(self.board.active)

    def kinds(self):
        return [event[0] for event in self.events]


def item(name, by="person:anna", until=None, selection="batch", **params):
    return ActiveIntervention(name=name, params=params, because="a test", by=by, until_step=until, selection=selection)


def test_what_is_wanted_is_put_up_and_told_once():
    room = Room()

    assert room.step(1, item("kl_cov", beta=2.0)) == {"kl_cov": {"beta": 2.0}}
    room.step(2, item("kl_cov", beta=2.0))
    room.step(3, item("kl_cov", beta=0.5))
    assert room.step(4) == {}

    assert [(kind, step) for kind, step, *_ in room.events] == [
        ("intervention_on", 1), ("intervention_changed", 3), ("intervention_off", 4),
    ]  # fmt: skip


def test_observe_applies_nothing_whatever_is_wanted():
    room = Room(mode="observe")

    assert room.step(1, item("kl_cov")) == {}
    assert room.events == []


def test_advise_applies_what_a_person_wants_and_refuses_what_a_rule_wants():
    room = Room(mode="advise")

    assert room.step(1, item("kl_cov", by="rule:guard"), item("clip_higher")) == {"clip_higher": {}}
    assert room.events[0][:3] == ("intervention_refused", 1, "kl_cov")
    assert "a person has to approve" in room.events[0][3]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (item("casp"), "not allowed in this run, which allows clip_cov, clip_higher"),
        (item("kl_cov", beta=3.0), "outside what the user of this run allows, 0 to 2"),
        (item("kl_cov", beta=1e9), "kl_cov.beta: Input should be less than or equal to 100"),
        (item("kl_cov", gamma=1.0), "its parameters are k, beta"),
        (item("warp_drive"), "unknown intervention"),
    ],
)
def test_what_is_not_allowed_is_refused_with_the_reason_and_said_once(wanted, reason):
    room = Room(bounds={"kl_cov.beta": (0.0, 2.0)})

    assert room.step(1, wanted) == {}
    room.step(2, wanted)

    assert room.kinds() == ["intervention_refused"]
    assert reason in room.events[0][3]


def test_two_that_cannot_be_combined_leave_what_was_on():
    room = Room()
    room.step(1, item("kl_cov"))

    assert room.step(2, item("kl_cov"), item("clip_cov")) == {"kl_cov": {}}
    assert room.kinds() == ["intervention_on", "intervention_refused"]
    assert "cannot be combined" in room.events[1][3]


def test_the_trainer_itself_keeps_to_the_last_step():
    room = Room()
    wanted = item("kl_cov", until=3)

    assert [bool(room.step(step, wanted)) for step in (2, 3, 4)] == [True, True, False]
    assert "until step 3" in room.events[-1][3]


def test_the_kill_switch_takes_everything_down():
    room = Room()
    room.step(1, item("kl_cov"), item("learning_rate", factor=0.5))

    assert room.step(2, item("kl_cov"), armed=False) == {}
    assert room.kinds()[-2:] == ["intervention_off", "intervention_off"]
    assert "everything was stopped" in room.events[-1][3]


@pytest.mark.parametrize(("on_lost", "stays"), [("hold", True), ("revert", False)])
def test_when_the_server_is_silent_it_holds_or_reverts_and_says_so_once(on_lost, stays):
    room = Room(on_lost=on_lost)
    room.step(1, item("kl_cov"))

    for step in (2, 3):
        assert bool(room.step(step, item("kl_cov"), is_lost=True)) == stays
    assert room.kinds().count("server_lost") == 1
    assert room.step(4, item("kl_cov")) == {"kl_cov": {}}
    assert "server_back" in room.kinds()


def test_a_silent_server_does_not_prolong_what_had_an_end():
    room = Room(on_lost="hold")
    room.step(1, item("kl_cov", until=2))

    assert room.step(3, is_lost=True) == {}


def test_thresholds_of_the_last_step_take_the_place_of_a_share_of_the_batch():
    room = Room()
    wanted = item("scope", selection="step", q=0.1)

    assert room.step(1, wanted) == {"scope": {"q": 0.1}}
    heard = Thresholds(step=1, values={"scope": 0.02})
    assert room.step(2, wanted, thresholds=heard) == {"scope": {"q": 0.1, "threshold": 0.02}}
    assert room.step(3, wanted, thresholds=heard.model_copy(update={"values": {"scope": 0.03}})) != {}
    assert room.step(4, item("scope", q=0.1), thresholds=heard) == {"scope": {"q": 0.1}}

    told = [(kind, step) for kind, step, *_ in room.events if kind == "selection"]
    assert told == [("selection", 2), ("selection", 4)]  # which one is in force, once for each change
    assert "score 0.02 or more" in next(message for kind, _, _, message in room.events if kind == "selection")


def test_what_raised_is_not_put_up_again_in_this_process():
    room = Room()
    room.step(1, item("kl_cov"), item("learning_rate", factor=0.5))
    room.board.fail("it raised")

    assert room.step(2, item("kl_cov"), item("learning_rate", factor=0.5)) == {"learning_rate": {"factor": 0.5}}
    room.step(3, item("kl_cov"), item("learning_rate", factor=0.5))
    assert room.kinds().count("intervention_refused") == 1
    assert "it raised" in room.events[-1][3]


def test_a_resumed_run_goes_on_until_the_server_speaks():
    room = Room()
    room.step(5, item("clip_cov"), item("learning_rate", factor=0.5))
    room.board.states["clip_cov"] = 17
    kept = room.controller.state_dict()

    again = Room()
    again.controller.load_state_dict(kept)
    assert again.board.states == {"clip_cov": 17}
    assert again.step(6, has_heard=False) == {"clip_cov": {}, "learning_rate": {"factor": 0.5}}
    assert again.events == []
    assert again.step(7, item("clip_cov")) == {"clip_cov": {}}
    assert again.board.states == {"clip_cov": 17}
    assert again.kinds() == ["intervention_off"]


def test_a_checkpoint_does_not_bring_back_what_is_not_allowed_any_more():
    room = Room()
    room.step(5, item("clip_cov"))

    again = Room(allow=["kl_cov"])
    again.controller.load_state_dict(room.controller.state_dict())

    assert again.board.active == {}
