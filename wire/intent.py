"""Changes of a desired state, as pure functions: who wants what on, proposals, the kill switch.

The trainer's controller decides what is applied (``Permissions``); these only say what is wanted.
"""

from entrostat.wire.errors import Conflict, NotFound
from entrostat.wire.messages import ActiveIntervention, DesiredState, Proposal


def switched_on(state: DesiredState, wanted: ActiveIntervention) -> DesiredState:
    """``wanted`` is on, in the place of one of the same name.

    Raises:
        Conflict: the kill switch is on; or a rule wants to change what a person switched on: the hand goes before.
    """
    if not state.is_armed:
        raise Conflict("everything was stopped: arm the run again before you switch something on")
    held = on(state, wanted.name)
    if held is not None and held.by.startswith("person:") and wanted.by.startswith("rule:"):
        raise Conflict(f"{wanted.name} was switched on by {held.by.partition(':')[2]}: a rule does not change that")
    kept = [i for i in state.interventions if i.name != wanted.name]
    return state.model_copy(update={"interventions": [*kept, wanted]})


def switched_off(state: DesiredState, name: str) -> DesiredState:
    """``name`` is off. Raises NotFound where it was not on."""
    if on(state, name) is None:
        raise NotFound(f"{name} is not on: on are {', '.join(i.name for i in state.interventions) or 'none'}")
    return state.model_copy(update={"interventions": [i for i in state.interventions if i.name != name]})


def proposed(state: DesiredState, proposal: Proposal) -> DesiredState:
    """``proposal`` waits for a person, in the place of an earlier one of the same rule."""
    kept = [p for p in state.proposals if p.intervention.by != proposal.intervention.by]
    return state.model_copy(update={"proposals": [*kept, proposal]})


def withdrawn(state: DesiredState, by: str) -> DesiredState:
    """The proposals of one author are gone."""
    return state.model_copy(update={"proposals": [p for p in state.proposals if p.intervention.by != by]})


def decided(state: DesiredState, proposal_id: str, person: str, approve: bool) -> DesiredState:
    """A person has approved a proposal, which is on now in their name, or dismissed it.

    Raises:
        NotFound: no such proposal; it was decided or withdrawn.
        Conflict: as in ``switched_on``.
    """
    found = next((p for p in state.proposals if p.proposal_id == proposal_id), None)
    if found is None:
        raise NotFound(f"no proposal {proposal_id} waits: it was decided or withdrawn")
    left = state.model_copy(update={"proposals": [p for p in state.proposals if p is not found]})
    if not approve:
        return left
    wanted = found.intervention
    because = f"{wanted.because} (proposed by {wanted.by.partition(':')[2]})"[:2000]
    return switched_on(left, wanted.model_copy(update={"by": f"person:{person}", "because": because}))


def stopped(state: DesiredState) -> DesiredState:
    """The kill switch: nothing is on, nothing is proposed, no rule acts until the run is armed again."""
    return state.model_copy(update={"interventions": [], "proposals": [], "is_armed": False})


def armed(state: DesiredState) -> DesiredState:
    """Rules and persons may switch things on again."""
    return state.model_copy(update={"is_armed": True})


def on(state: DesiredState, name: str) -> ActiveIntervention | None:
    """The intervention of that name where it is on."""
    return next((i for i in state.interventions if i.name == name), None)
