"""A rule at a step: ``evaluate(rule, state, facts, control) -> (state', actions)``. Pure, and the same in a replay.

A rule is idle or has fired. It fires when its condition is true (never while it is unknown), its cooldown is over and
it may fire again; it ends when its own end has come or a person has decided otherwise.
"""

from typing import Any

from entrostat.server.rules import hold
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
from entrostat.server.rules.conditions import Reading
from entrostat.server.rules.history import Facts
from entrostat.server.rules.person import what_a_person_did
from entrostat.server.rules.state import Active, Controller, RuleState
from entrostat.server.rules.words import because, words
from entrostat.wire.messages import ActiveIntervention, Proposal
from entrostat.wire.rules.rule import AnyRule, HoldRule, Rule, Steps

Result = tuple[RuleState, list[Action]]


def evaluate(rule: AnyRule, state: RuleState, facts: Facts, control: Control) -> Result:
    """What a rule does at ``facts.step``, and what it remembers of it.

    Args:
        state: after the step before.
        facts: what is known of the run at this step, nothing later.
        control: what is on and what may be, with what other rules have changed at this step.
    """
    if not control.desired.is_armed:
        return stopped(rule, state, facts.step)
    if isinstance(rule, HoldRule):
        return hold.evaluate(rule, state, facts, control)
    when = Reading(facts, state.streaks)
    wanted = when.truth(rule.when, "when")
    after = state.model_copy(update={"step": facts.step, "streaks": when.after})
    if state.active is not None:
        return _ended(rule, after, state.active, facts, control, wanted, state.streaks)
    spent = rule.max_firings is not None and state.num_firings >= rule.max_firings
    if wanted is not True or spent or state.is_resting(facts.step, rule.cooldown_steps):
        return after, []
    return _fired(rule, after, facts, control, when.values)


def stopped(rule: AnyRule, state: RuleState, step: int) -> Result:
    """The kill switch is on: nothing fires, nothing is counted, and what had fired is over."""
    after = state.model_copy(update={"step": step, "streaks": {}, "controller": Controller()})
    if state.active is None:
        return after, []
    ended = Action("rule_ended", rule.name, step, f"{rule.name}: everything was stopped")
    return after.model_copy(update={"active": None, "ended": step}), [ended]


def dropped(name: str, state: RuleState, step: int, why: str) -> list[Action]:
    """What is to be done when a rule is removed or changed: what it has on goes off, what it proposed is withdrawn."""
    active = state.active
    if active is None or active.intervention is None or active.outcome in ("approved", "told"):
        return []
    if active.outcome == "proposed":
        return [Action("rule_withdrawn", name, step, f"{name}: {why}", change=Unask(f"rule:{name}"))]
    said = f"{name}: {why}, {active.intervention} off"
    return [Action("rule_ended", name, step, said, change=Off(active.intervention, f"rule:{name}"))]


def _fired(rule: Rule, state: RuleState, facts: Facts, control: Control, values: dict[str, Any]) -> Result:
    reason = because(rule.when, values)
    if rule.until is not None:
        reason += f"; until {words(rule.until)}"
    ends_at = None if rule.on_steps is None else facts.acts_from + rule.on_steps
    wanted = None if rule.do is None else ActiveIntervention(
        name=rule.do.intervention,
        params={k: v for k, v in rule.do.params.items() if v is not None},
        because=reason[:1900],
        by=author(rule),
        selection=rule.do.selection,
        until_step=ends_at if isinstance(rule.until, Steps) else None,
    )  # fmt: skip
    outcome, why_not = outcome_of(rule, wanted, control)
    detail: dict[str, Any] = {"rule": rule.name, "outcome": outcome, "values": values, "meaning": rule.meaning}
    change: Change | None = None
    said = f"{rule.name}: {reason}"
    if wanted is not None:
        detail["intervention"] = wanted.model_dump(mode="json")
        said = f"{rule.name}: {wanted.name} on, because {reason}"
        if outcome == "acted":
            change = On(wanted)
        elif outcome == "proposed":
            number = proposal_id(facts.run, rule, facts.step)
            change = Ask(Proposal(proposal_id=number, intervention=wanted, step=facts.step))
            said = f"{rule.name} proposes {wanted.name}, because {reason}"
        else:
            detail["why_not"] = why_not
            said = f"{rule.name}: would switch {wanted.name} on, but {why_not}; {reason}"
    active = Active(outcome=outcome, since=facts.step, ends_at=ends_at, intervention=wanted.name if wanted else None)
    after = state.model_copy(update={"active": active, "num_firings": state.num_firings + 1})
    kind = "rule_proposed" if outcome == "proposed" else "rule_fired"
    return after, [Action(kind, rule.name, facts.step, said, detail, change)]  # type: ignore[arg-type]


def _ended(
    rule: Rule,
    state: RuleState,
    active: Active,
    facts: Facts,
    control: Control,
    wanted: bool | None,
    streaks: dict[str, Any],
) -> Result:
    """``state`` with the firing over, if it is; ``streaks`` are those before this step."""
    active, by_hand = what_a_person_did(active, author(rule), control.desired)
    if by_hand is not None:
        return _over(rule, state, active, facts, by_hand, {}, None)
    until = Reading(facts, streaks)
    is_over: bool | None = None
    why, values = "", until.values
    if rule.until is not None and not isinstance(rule.until, Steps):
        is_over, why = until.truth(rule.until, "until"), because(rule.until, until.values)
    elif active.ends_at is not None:
        is_over, why = facts.step >= active.ends_at, f"{rule.on_steps} steps are over"
    elif active.outcome in ("told", "proposed"):
        is_over, why = wanted is False, f"no longer {words(rule.when)}"
    if is_over is True:
        return _over(rule, state, active, facts, why, values, _change_at_the_end(active, rule))
    return state.model_copy(update={"active": active, "streaks": state.streaks | until.after}), []


def _change_at_the_end(active: Active, rule: Rule) -> Change | None:
    if active.intervention is None or active.outcome == "told":
        return None
    # What a person approved was proposed with its end, and ends with it.
    return Unask(author(rule)) if active.outcome == "proposed" else Off(active.intervention, author(rule))


def _over(
    rule: Rule, state: RuleState, active: Active, facts: Facts, why: str, values: dict[str, Any], change: Change | None
) -> Result:
    kind = "rule_withdrawn" if isinstance(change, Unask) else "rule_ended"
    said = f"{rule.name}: {active.intervention} off, {why}" if isinstance(change, Off) else f"{rule.name}: over, {why}"
    if isinstance(change, Unask):
        said = f"{rule.name}: proposal withdrawn, {why}"
    detail = {"rule": rule.name, "outcome": active.outcome, "since": active.since, "values": values}
    after = state.model_copy(update={"active": None, "ended": facts.step})
    return after, [Action(kind, rule.name, facts.step, said, detail, change)]  # type: ignore[arg-type]
