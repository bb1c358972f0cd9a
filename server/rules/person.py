"""What persons made of what a rule had switched on or proposed, read off the desired state."""

from entrostat.server.rules.state import Active
from entrostat.wire import intent
from entrostat.wire.messages import ActiveIntervention, DesiredState


def what_a_person_did(active: Active, by: str, desired: DesiredState) -> tuple[Active, str | None]:
    """The firing as it stands now, and why it is over where a person has ended it.

    Args:
        by: the rule as an author.
    """
    if active.intervention is None or active.outcome == "told":
        return active, None
    held = intent.on(desired, active.intervention)
    if active.outcome == "proposed" and not any(p.intervention.by == by for p in desired.proposals):
        if held is None or not is_approved(held, by):
            return active, "the proposal was dismissed"
        return active.model_copy(update={"outcome": "approved"}), None
    if active.outcome == "acted" and (held is None or held.by != by):
        return active, _gone(active.intervention, held)
    if active.outcome == "approved" and (held is None or not is_approved(held, by)):
        return active, _gone(active.intervention, held)
    return active, None


def is_approved(held: ActiveIntervention, by: str) -> bool:
    """Whether ``held`` was a proposal of ``by``: it is on in a person's name then, and says whose idea it was."""
    return f"(proposed by {by.partition(':')[2]})" in held.because  # as ``intent.decided`` writes it


def _gone(name: str, now: ActiveIntervention | None) -> str:
    if now is None:
        return f"{name} was switched off by hand"
    return f"{name} is in the hand of {now.by.partition(':')[2]}"
