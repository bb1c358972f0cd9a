"""Between two steps every rank hears rank 0, and what raised on one comes down on all."""

from types import SimpleNamespace

import pytest
import torch.distributed

from entrostat.trainer_adapters.board import Board
from entrostat.trainer_adapters.boundary import switch
from entrostat.trainer_adapters.controller import Controller, Intent
from entrostat.wire.messages import ActiveIntervention, DesiredState, Mode, Permissions

PERMISSIONS = Permissions(mode=Mode.act, allow=["entropy_bonus", "learning_rate"])


def wants(**params):
    on = [ActiveIntervention(name=name, params=given, by="person:a", because="try") for name, given in params.items()]
    return Intent(DesiredState(version=1, interventions=on), None, False, True, 0.0)


WANTED = wants(entropy_bonus={"c": 0.1}, learning_rate={"factor": 0.5})


class Rank:
    """One rank's session, as far as the boundary asks it, with its controller."""

    def __init__(self, rank, intent, world_size=2):
        self.place = SimpleNamespace(rank=rank, world_size=world_size)
        self.said = []
        self._intent = intent
        self.controller = Controller(
            PERMISSIONS, Board(), lambda kind, message, *rest: self.said.append((kind, message))
        )

    def intent(self, waited_s):
        return self._intent

    def begin(self, step):
        switch(self, self.controller, step)


@pytest.fixture
def group(monkeypatch):
    """``group([what each rank gives])``: torch's gathering of two ranks, this process being one of them."""

    def of(others):
        def all_gather_object(into, mine):
            into[:] = [mine if other is None else other for other in others]

        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: len(others))
        monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather_object)

    return of


def test_a_rank_does_what_rank_0_heard_and_not_what_it_heard_itself(group):
    group([(WANTED, None), None])
    second = Rank(1, wants())
    second.begin(1)

    assert set(second.controller.in_force) == {"entropy_bonus", "learning_rate"}


def test_what_raised_on_another_rank_comes_down_here_too_and_levers_stay(group):
    group([None, (None, None)])
    first = Rank(0, WANTED)
    first.begin(1)
    group([None, (None, "RuntimeError: planted")])
    first.begin(2)

    assert set(first.controller.in_force) == {"learning_rate"}
    assert ("intervention_refused", "entropy_bonus was refused: on rank 1: RuntimeError: planted") in first.said
    assert first.controller.board.transforms == ()


def test_the_ranks_own_failure_is_told_in_its_own_words(group):
    group([None, (None, "RuntimeError: the same")])
    first = Rank(0, WANTED)
    group([None, (None, None)])
    first.begin(1)
    first.controller.board.fail("RuntimeError: here")
    group([None, (None, "RuntimeError: there")])
    first.begin(2)

    assert first.controller.broken == {"entropy_bonus": "RuntimeError: here"}


def test_without_a_group_each_process_listens_to_its_own_stream():
    second = Rank(1, WANTED)
    second.begin(1)

    assert "entropy_bonus" in second.controller.in_force
