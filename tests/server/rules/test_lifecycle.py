"""A rule fires, rests, ends; what it may do is the run's to say, and a person's hand goes before."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.histories import history, series

from entrostat.server.rules.actions import Control, applied
from entrostat.server.rules.lifecycle import dropped, evaluate
from entrostat.server.rules.state import RuleState
from entrostat.wire import intent
from entrostat.wire.messages import ActiveIntervention, DesiredState, Mode, Permissions
from entrostat.wire.rules.rule import read_rule

ALLOWED = Permissions(mode=Mode.act, allow=["scope", "kl_cov", "selective_kl", "save_checkpoint"])
GUARD = {
    "name": "guard",
    "when": {"signal": "d_collapse", "above": 0.25, "for_steps": 2},
    "do": {"intervention": "scope", "params": {"lam": 0.1}},
    "until": {"signal": "d_collapse", "below": 0.15, "for_steps": 2},
    "cooldown_steps": 3,
    "mode": "act",
}
UP, DOWN = 0.3, 0.1


class Run:
    """A rule in a run, step by step, with a hand that may reach in between."""

    def __init__(self, rule=GUARD, permissions=ALLOWED, **changes):
        self.rule = read_rule(rule | changes)
        self.control = Control(DesiredState(), permissions)
        self.state, self.values, self.kinds, self.actions = RuleState(), [], [], []

    def step(self, *values):
        for value in values:
            self.values.append(value)
            rows = series("d_collapse", self.values)
            facts = history(rows, [self.rule]).at(len(rows) - 1)
            # What is remembered is JSON: a restart between any two steps changes nothing.
            before = RuleState.model_validate_json(self.state.model_dump_json())
            self.state, actions = evaluate(self.rule, before, facts, self.control)
            self.by_hand(lambda desired, actions=actions: applied(desired, actions))
            self.kinds += [(facts.step, action.kind) for action in actions]
            self.actions += actions
        return self

    def by_hand(self, change):
        self.control = dataclasses.replace(self.control, desired=change(self.control.desired))

    @property
    def on(self):
        return {i.name: i.by for i in self.control.desired.interventions}


def test_it_fires_when_its_condition_has_lasted_and_ends_by_its_own_end():
    run = Run().step(UP, UP)

    assert run.on == {"scope": "rule:guard"}
    assert "d_collapse = 0.3" in run.control.desired.interventions[0].because
    run.step(UP, DOWN, DOWN)
    assert run.on == {}
    assert run.kinds == [(1, "rule_fired"), (4, "rule_ended")]
    assert run.actions[0].detail["values"] == {"d_collapse": UP}


def test_between_the_two_thresholds_nothing_changes():
    assert Run().step(UP, UP, 0.2, 0.2, 0.2, 0.2).on == {"scope": "rule:guard"}
    assert Run().step(0.2, 0.2, 0.2).on == {}


def test_it_rests_after_it_ended_and_may_fire_again():
    run = Run().step(UP, UP, DOWN, DOWN, UP, UP, UP, UP)

    assert run.kinds == [(1, "rule_fired"), (3, "rule_ended"), (6, "rule_fired")]


def test_a_cap_is_for_the_whole_run():
    run = Run(max_firings=1, cooldown_steps=0).step(UP, UP, DOWN, DOWN, UP, UP, UP)

    assert [kind for _, kind in run.kinds] == ["rule_fired", "rule_ended"]


def test_an_end_after_steps_is_told_to_the_trainer_too():
    run = Run(until={"steps": 3}).step(UP, UP)

    assert run.control.desired.interventions[0].until_step == 1 + 3
    run.step(UP, UP)
    assert run.on == {"scope": "rule:guard"}
    run.step(UP)
    assert run.on == {}


def test_without_an_end_it_stays_on():
    assert Run(until=None).step(UP, UP, DOWN, DOWN, DOWN, None, DOWN).on == {"scope": "rule:guard"}


def test_a_rule_without_anything_to_do_only_tells_and_ends_with_its_condition():
    run = Run(do=None, until=None).step(UP, UP, UP, None, DOWN)

    assert run.control.desired == DesiredState()
    assert run.kinds == [(1, "rule_fired"), (4, "rule_ended")]


def test_what_is_done_once_is_taken_back():
    run = Run(do={"intervention": "save_checkpoint"}, until=None).step(*[UP] * 22)

    assert run.kinds == [(1, "rule_fired"), (21, "rule_ended")]
    assert run.on == {}


@pytest.mark.parametrize("rule_mode", ["advise", "act"])
@pytest.mark.parametrize("run_mode", list(Mode))
def test_a_rule_does_what_it_and_the_run_both_allow(rule_mode, run_mode):
    run = Run(mode=rule_mode, permissions=ALLOWED.model_copy(update={"mode": run_mode})).step(UP, UP)

    expected = "rule_fired" if run_mode is Mode.observe else "rule_proposed"
    may_act = (rule_mode, run_mode) == ("act", Mode.act)
    assert run.kinds == [(1, "rule_fired" if may_act else expected)]
    assert bool(run.on) is may_act
    assert len(run.control.desired.proposals) == (not may_act and run_mode is not Mode.observe)
    if run_mode is Mode.observe:
        assert "would switch scope on, but the run only observes" in run.actions[0].message


@pytest.mark.parametrize(
    ("permissions", "said"),
    [
        ({"allow": ["kl_cov"]}, "the run does not allow scope"),
        ({"bounds": {"scope.lam": (0.2, 1.0)}}, "scope.lam=0.1 is outside what the user of this run allows, 0.2 to 1"),
    ],
)
def test_what_the_run_does_not_allow_is_only_told(permissions, said):
    run = Run(permissions=ALLOWED.model_copy(update=permissions)).step(UP, UP, UP)

    assert run.control.desired == DesiredState()
    assert run.kinds == [(1, "rule_fired")]
    assert said in run.actions[0].message


@pytest.mark.parametrize(
    ("on", "said"),
    [
        (ActiveIntervention(name="scope", because="x", by="person:anna"), "scope was switched on by anna"),
        (ActiveIntervention(name="scope", because="x", by="rule:other"), "scope was switched on by other"),
        (ActiveIntervention(name="selective_kl", because="x", by="person:anna"), "selective_kl is on: "),
    ],
)
def test_what_is_on_goes_before(on, said):
    run = Run()
    run.by_hand(lambda desired: intent.switched_on(desired, on))
    run.step(UP, UP, DOWN, DOWN)

    assert run.control.desired.interventions == [on]
    assert said in run.actions[0].message
    assert [kind for _, kind in run.kinds] == ["rule_fired", "rule_ended"]


def test_what_a_person_switches_off_stays_off_for_the_cooldown():
    run = Run().step(UP, UP)
    run.by_hand(lambda desired: intent.switched_off(desired, "scope"))
    run.step(UP, UP, UP)
    assert run.on == {}
    assert "switched off by hand" in run.actions[-1].message
    run.step(UP)

    assert run.kinds == [(1, "rule_fired"), (2, "rule_ended"), (5, "rule_fired")]


def test_what_a_person_takes_over_is_theirs():
    run = Run().step(UP, UP)
    theirs = ActiveIntervention(name="scope", params={"lam": 1.0}, because="more", by="person:anna")
    run.by_hand(lambda desired: intent.switched_on(desired, theirs))
    run.step(UP, DOWN, DOWN)

    assert run.control.desired.interventions == [theirs]
    assert "in the hand of anna" in run.actions[-1].message


def test_an_approved_proposal_ends_as_it_was_proposed():
    run = Run(mode="advise").step(UP, UP)
    (proposal,) = run.control.desired.proposals
    run.by_hand(lambda desired: intent.decided(desired, proposal.proposal_id, "anna", approve=True))
    run.step(UP)
    assert run.on == {"scope": "person:anna"}
    run.step(DOWN, DOWN)

    assert run.on == {}
    assert run.kinds == [(1, "rule_proposed"), (4, "rule_ended")]


def test_a_dismissed_proposal_is_not_made_again_before_the_cooldown():
    run = Run(mode="advise").step(UP, UP)
    (proposal,) = run.control.desired.proposals
    run.by_hand(lambda desired: intent.decided(desired, proposal.proposal_id, "anna", approve=False))
    run.step(UP, UP, UP)
    assert run.control.desired.proposals == []
    run.step(UP)

    assert run.kinds == [(1, "rule_proposed"), (2, "rule_ended"), (5, "rule_proposed")]


def test_a_proposal_is_withdrawn_when_its_reason_is_over():
    run = Run(mode="advise").step(UP, UP, DOWN, DOWN)

    assert run.control.desired.proposals == []
    assert run.kinds == [(1, "rule_proposed"), (3, "rule_withdrawn")]


def test_the_kill_switch_ends_everything_and_nothing_is_counted_until_armed():
    run = Run(cooldown_steps=0).step(UP, UP)
    run.by_hand(intent.stopped)
    run.step(UP, UP, UP)
    assert run.on == {}
    assert run.kinds == [(1, "rule_fired"), (2, "rule_ended")]
    run.by_hand(intent.armed)
    run.step(UP)
    assert run.on == {}
    run.step(UP)

    assert run.on == {"scope": "rule:guard"}


def test_a_removed_rule_takes_back_what_it_has_on_and_nothing_else():
    run = Run().step(UP, UP)
    actions = dropped("guard", run.state, 1, "the rule was removed")
    theirs = ActiveIntervention(name="scope", because="mine now", by="person:anna")

    assert applied(run.control.desired, actions).interventions == []
    assert applied(DesiredState(interventions=[theirs]), actions).interventions == [theirs]


def test_a_resumed_session_takes_a_rule_back_to_its_checkpoint():
    run = Run().step(UP, UP, DOWN, DOWN, UP)
    back = run.state.rewound(2, 1)

    assert (back.step, back.ended, back.streaks, back.num_resumes) == (2, 2, {}, 1)
    assert Run().step(UP, UP).state.rewound(0, 1).active.since == 0


VALUES = st.lists(st.sampled_from([UP, 0.2, DOWN, None]), max_size=40)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.integers(1, 4), st.integers(0, 6), st.integers(1, 3))
def test_in_any_history_it_fires_only_after_known_steps_in_a_row_and_after_its_cooldown(values, num, cooldown, cap):
    run = Run(
        when={"signal": "d_collapse", "above": 0.25, "for_steps": num}, cooldown_steps=cooldown, max_firings=cap
    ).step(*values)  # fmt: skip
    fired = [step for step, kind in run.kinds if kind == "rule_fired"]
    ended = [step for step, kind in run.kinds if kind == "rule_ended"]

    assert all(values[max(0, s - num + 1) : s + 1] == [UP] * num for s in fired)
    assert all(values[s - 1 : s + 1] == [DOWN] * 2 for s in ended)
    assert all(later - earlier >= cooldown for earlier, later in zip(ended, fired[1:], strict=False))
    assert [kind for _, kind in run.kinds] == ["rule_fired", "rule_ended"] * (len(run.kinds) // 2) + ["rule_fired"] * (
        len(run.kinds) % 2
    )
    assert len(fired) <= cap


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_nothing_happens_at_a_step_where_a_needed_signal_is_unknown(values):
    run = Run().step(*values)

    assert all(values[step] is not None for step, _ in run.kinds)
