"""What a rule wants done at a step: an event, and perhaps a change of the desired state."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from entrostat.server.rules.person import is_approved
from entrostat.server.rules.state import Outcome
from entrostat.wire import intent
from entrostat.wire.interventions import BY_NAME, exclusion
from entrostat.wire.messages import ActiveIntervention, DesiredState, Mode, Permissions, Proposal
from entrostat.wire.rules.rule import AnyRule

Kind = Literal["rule_fired", "rule_proposed", "rule_adjusted", "rule_ended", "rule_withdrawn"]


@dataclass(frozen=True, slots=True)
class On:
    """Switch this on, or change it."""

    intervention: ActiveIntervention


@dataclass(frozen=True, slots=True)
class Off:
    """Switch it off, where it is on by this author, or approved from their proposal."""

    name: str
    by: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Propose it."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Unask:
    """Take the proposals of this author back."""

    by: str


Change = On | Off | Ask | Unask


@dataclass(frozen=True, slots=True)
class Action:
    """One thing done at a step.

    Args:
        kind: of the event.
        message: one sentence.
        detail: the values behind it, JSON.
        change: None where it only tells.
    """

    kind: Kind
    rule: str
    step: int
    message: str
    detail: dict[str, Any] = field(default_factory=dict)
    change: Change | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """What is wanted of the run at the moment, and what may be."""

    desired: DesiredState
    permissions: Permissions


def applied(desired: DesiredState, actions: Sequence[Action]) -> DesiredState:
    """The desired state with the changes of ``actions``, in their order."""
    for action in actions:
        change = action.change
        if isinstance(change, On):
            desired = intent.switched_on(desired, change.intervention)
        elif isinstance(change, Off):
            held = intent.on(desired, change.name)
            is_theirs = held is not None and (held.by == change.by or is_approved(held, change.by))
            desired = intent.switched_off(desired, change.name) if is_theirs else desired
        elif isinstance(change, Ask):
            desired = intent.proposed(desired, change.proposal)
        elif isinstance(change, Unask):
            desired = intent.withdrawn(desired, change.by)
    return desired


def author(rule: AnyRule) -> str:
    """The rule as the author of what it does."""
    return f"rule:{rule.name}"


def outcome_of(rule: AnyRule, wanted: ActiveIntervention | None, control: Control) -> tuple[Outcome, str | None]:
    """What may come of wanting ``wanted``, and why no more than that."""
    if wanted is None:
        return "told", None
    if control.permissions.mode is Mode.observe:
        return "told", "the run only observes"
    if (reason := hindrance(wanted, control)) is not None:
        return "told", reason
    may_act = rule.mode == "act" and control.permissions.mode is Mode.act
    return ("acted", None) if may_act else ("proposed", None)


def hindrance(wanted: ActiveIntervention, control: Control) -> str | None:
    """Why ``wanted`` cannot be on now; None where it can. A person's hand goes before, then the rule that was first."""
    permissions, desired = control.permissions, control.desired
    if wanted.name not in permissions.allow:
        return f"the run does not allow {wanted.name}"
    known = BY_NAME.get(wanted.name)  # one of a newer entrostat may stand in the database
    if known is not None and (reason := known.outside(wanted.params, permissions.bounds)) is not None:
        return reason
    held = intent.on(desired, wanted.name)
    if held is not None and held.by != wanted.by:
        return f"{wanted.name} was switched on by {held.by.partition(':')[2]}"
    for other in desired.interventions:
        if (why := exclusion(wanted.name, other.name)) is not None:
            return f"{other.name} is on: {why}"
    return None


def proposal_id(run: str, rule: AnyRule, step: int) -> str:
    """The same for the same rule, run and step: evaluating a step again after a crash makes no second proposal."""
    return hashlib.sha256(f"{run}\n{rule.name}\n{step}".encode()).hexdigest()[:32]
