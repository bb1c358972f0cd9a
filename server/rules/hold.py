"""The thermostat: one parameter moved in a closed loop so that a signal stays near a level.

A proportional-integral controller with a dead zone: within half the band of ``at`` the error e is 0, beyond it is the
distance to that half. (A dead zone as wide as the band would be left alone just outside of it: the nearer its edge, the
smaller the error.)

    u = neutral + gain e + I,     I += gain integral e

then clamped to [min, max] and moved by at most ``max_change_per_step`` a step. While u is clamped, or held back by the
rate, I does not grow in that direction (conditional integration, Astrom and Hagglund, Sec. 3.5): after an hour at the
limit it lets go as soon as the error turns.

Decision: steps are added, not multiplied. The parameters are coefficients of a term of the loss, whose effect is
linear in them, and 0 is where most are off: a factor would never leave it.

In the dead zone I stays: the parameter rests where it holds the signal. It is written with 4 significant
digits and only after it has moved by more than 1 %, so that noise inside the loop does not become versions of the
desired state.
"""

from collections.abc import Collection
from typing import Any

from entrostat.server.rules.actions import (
    Action,
    Ask,
    Change,
    Control,
    Off,
    On,
    Unask,
    author,
    outcome_of,
    proposal_id,
)
from entrostat.server.rules.conditions import scale_of
from entrostat.server.rules.history import Facts
from entrostat.server.rules.person import what_a_person_did
from entrostat.server.rules.state import Active, Controller, Outcome, RuleState
from entrostat.server.rules.words import relative
from entrostat.wire.messages import ActiveIntervention, Permissions, Proposal
from entrostat.wire.rules.rule import Actuator, HoldRule

MOVED = 0.01
"""Share of its value that the parameter has to move by before it is written."""
MOVED_PROPOSAL = 0.1
"""The same before a person is asked again, or told."""
LEAST_MOVE = 0.001
"""Share of the range that is no move at all, near 0."""


def evaluate(rule: HoldRule, state: RuleState, facts: Facts, control: Control) -> tuple[RuleState, list[Action]]:
    """What the thermostat does at a step; the run is armed."""
    state = state.model_copy(update={"step": facts.step})
    if state.active is not None:
        active, by_hand = what_a_person_did(state.active, author(rule), control.desired)
        state = state.model_copy(update={"active": active})
        if by_hand is not None:
            return _let_go(rule, state, facts, by_hand)
        if active.outcome == "approved":
            return state, []  # the value is in a person's hand: a rule does not move it
    if state.is_resting(facts.step, rule.cooldown_steps):
        return state, []
    value = measured(rule, facts)
    if value is None:
        return state, []
    outcome, why_not = _outcome(rule, state, control, value)
    low, high = limits(rule.with_, control.permissions)
    moved = moved_by(rule, state.controller, value, low, high, is_closed=outcome == "acted")
    after = state.model_copy(update={"controller": moved})
    return _written(rule, after, facts, control.permissions, value, outcome, why_not)


def measured(rule: HoldRule, facts: Facts) -> float | None:
    """The mean of the signal over its window; None where it is unknown."""
    found = facts.window(rule.hold.signal, rule.hold.window)
    scale = scale_of(rule.hold.signal, rule.hold.relative_to, facts)
    return None if found is None or scale is None else sum(found[1]) / len(found[1]) / scale


def limits(actuator: Actuator, permissions: Permissions) -> tuple[float, float]:
    """Lowest and highest output: the rule's own, narrowed by the user's; off is always allowed."""
    low, high = _users(actuator, permissions)
    return min(max(low, actuator.min), actuator.off_at), max(min(high, actuator.max), actuator.off_at)


def _users(actuator: Actuator, permissions: Permissions) -> tuple[float, float]:
    return permissions.bounds.get(f"{actuator.intervention}.{actuator.param}", (actuator.min, actuator.max))


def moved_by(
    rule: HoldRule, held: Controller, value: float, low: float, high: float, is_closed: bool = True
) -> Controller:
    """The controller after a measurement of ``value``.

    Args:
        low, high: what the output may be.
        is_closed: whether the output acts on the run. Where it is only said or proposed, nothing comes back, and an
            integral would only grow.
    """
    actuator, error = rule.with_, outside(rule.hold.at - value, rule.hold.band / 2)
    off = actuator.off_at
    output = off if held.output is None else held.output
    growth = actuator.gain * actuator.integral * error if is_closed else 0.0
    target = off + actuator.gain * error + held.integral + growth
    nearest = min(max(target, low), high)
    nearest = min(max(nearest, output - actuator.rate), output + actuator.rate)
    is_held_back = (target > nearest and growth > 0) or (target < nearest and growth < 0)
    integral = held.integral if is_held_back else held.integral + growth
    integral = min(max(integral, low - off), high - off)
    return held.model_copy(update={"integral": integral, "output": nearest})


def outside(error: float, zone: float) -> float:
    """How far ``error`` is beyond -zone to zone; 0 inside."""
    return max(error - zone, 0.0) + min(error + zone, 0.0)


def rounded(value: float) -> float:
    """``value`` with 4 significant digits."""
    return float(f"{value:.4g}")


def has_moved(value: float, written: float, span: float, ends: Collection[float], share: float) -> bool:
    """Whether ``value`` is far enough from what was ``written`` to be written.

    Args:
        span: the parameter's range.
        ends: its limits and its neutral value, which are always written.
        share: of ``written`` that is no move.
    """
    if value in ends:
        return value != written
    return abs(value - written) > max(share * abs(written), LEAST_MOVE * span)


def _outcome(rule: HoldRule, state: RuleState, control: Control, value: float) -> tuple[Outcome, str | None]:
    """What may come of moving the parameter; what it has on already it may go on moving."""
    if state.active is not None and state.active.outcome == "acted":
        return "acted", None
    low, high = _users(rule.with_, control.permissions)
    return outcome_of(rule, _wanted(rule, min(max(rule.with_.off_at, low), high), value), control)


def _written(
    rule: HoldRule,
    state: RuleState,
    facts: Facts,
    permissions: Permissions,
    value: float,
    outcome: Outcome,
    why_not: str | None,
) -> tuple[RuleState, list[Action]]:
    """The controller's output, asked for where it has moved, or where it may act by now."""
    actuator, held = rule.with_, state.controller
    output = actuator.off_at if held.output is None else held.output
    is_off = abs(output - actuator.off_at) <= LEAST_MOVE * (actuator.max - actuator.min)
    low, high = _users(actuator, permissions)
    output = actuator.off_at if is_off else rounded(min(max(output, low), high))
    written = actuator.off_at if held.written is None else held.written
    may_more = state.active is not None and state.active.outcome != outcome
    ends = {actuator.min, actuator.max, actuator.off_at, low, high}
    share = MOVED if outcome == "acted" else MOVED_PROPOSAL
    if not may_more and not has_moved(output, written, actuator.max - actuator.min, ends, share):
        return state, []
    action = _action(rule, facts, _wanted(rule, output, value), outcome, why_not, is_off)
    action.detail["values"] = {rule.hold.signal + relative(rule.hold.relative_to): value, actuator.param: output}
    since = facts.step if state.active is None else state.active.since
    active = None if is_off else Active(outcome=outcome, since=since, intervention=actuator.intervention)
    after = held.model_copy(update={"written": None if is_off else output})
    num = state.num_firings + (state.active is None and not is_off)
    return state.model_copy(update={"active": active, "controller": after, "num_firings": num}), [action]


def _wanted(rule: HoldRule, output: float, value: float) -> ActiveIntervention:
    hold, actuator = rule.hold, rule.with_
    reason = (
        f"{hold.signal}{relative(hold.relative_to)} = {value:.4g} is held at {hold.at:g} +- {hold.band:g} by "
        f"{actuator.intervention}.{actuator.param} = {output:g}"
    )
    params = {name: one for name, one in actuator.params.items() if one is not None}
    return ActiveIntervention(
        name=actuator.intervention,
        params=params | {actuator.param: output},
        because=reason,
        by=author(rule),
        selection=actuator.selection,
    )


def _action(
    rule: HoldRule,
    facts: Facts,
    wanted: ActiveIntervention,
    outcome: Outcome,
    why_not: str | None,
    is_off: bool,
) -> Action:
    what = f"{wanted.name} off: {wanted.because}" if is_off else wanted.because
    detail: dict[str, Any] = {"rule": rule.name, "outcome": outcome, "intervention": wanted.model_dump(mode="json")}
    change: Change | None = None
    if outcome == "acted":
        change = Off(wanted.name, wanted.by) if is_off else On(wanted)
        return Action("rule_adjusted", rule.name, facts.step, f"{rule.name}: {what}", detail, change)
    if outcome == "proposed":
        if is_off:
            said = f"{rule.name}: proposal withdrawn, {wanted.because}"
            return Action("rule_withdrawn", rule.name, facts.step, said, detail, Unask(author(rule)))
        proposal = Proposal(
            proposal_id=proposal_id(facts.run, rule, facts.step), intervention=wanted, step=facts.step
        )  # fmt: skip
        return Action("rule_proposed", rule.name, facts.step, f"{rule.name} proposes: {what}", detail, Ask(proposal))
    detail["why_not"] = why_not
    return Action("rule_adjusted", rule.name, facts.step, f"{rule.name}: would be, but {why_not}; {what}", detail)


def _let_go(rule: HoldRule, state: RuleState, facts: Facts, why: str) -> tuple[RuleState, list[Action]]:
    """A person has decided otherwise: start again from neutral, after the cooldown."""
    after = state.model_copy(update={"active": None, "ended": facts.step, "controller": Controller()})
    return after, [Action("rule_ended", rule.name, facts.step, f"{rule.name}: {why}", {"rule": rule.name})]
