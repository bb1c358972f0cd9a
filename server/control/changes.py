"""What a person's request makes of the desired state, and what is written down of it."""

import logging
from collections.abc import Callable
from typing import Any

from entrostat.server.control import allowed
from entrostat.server.control.bodies import Decision, SwitchOn
from entrostat.storage.audit import By
from entrostat.storage.control_book import Asked
from entrostat.storage.store import Store
from entrostat.wire import intent
from entrostat.wire.errors import NotFound
from entrostat.wire.logs import event
from entrostat.wire.messages import ActiveIntervention, DesiredState, Proposal

_log = logging.getLogger(__name__)


class Hand:
    """One person at one run.

    Args:
        person: who is answerable.
        by: the request's; the name it gave is written down beside the token's where it is another.
    """

    def __init__(self, store: Store, run: str, person: str, by: By) -> None:
        self._store, self._run, self._person, self._by = store, run, person, by
        self._said = by.said if by.said and by.said != person else None

    def switch_on(self, name: str, body: SwitchOn) -> DesiredState:
        """``name`` is on as ``body`` says. Raises as ``allowed.checked``, ``check_company`` and ``switched_on``."""
        params = {key: value for key, value in body.params.items() if value is not None}
        wanted = self._checked(
            ActiveIntervention(
                name=name,
                params=params,
                because=body.because,
                by=f"person:{self._person}",
                selection=body.selection,
                until_step=body.until_step,
            )
        )

        def change(state: DesiredState) -> DesiredState:
            allowed.check_company(name, state)
            return intent.switched_on(state, wanted)

        return self._change("switch_on", change, body.because, name, body.expected_version)

    def switch_off(self, name: str, because: str) -> DesiredState:
        """``name`` is off. Raises NotFound where it was not on."""
        return self._change("switch_off", lambda state: intent.switched_off(state, name), because, name)

    def decide(self, proposal_id: str, body: Decision) -> DesiredState:
        """A proposal is approved, perhaps with other parameters, or dismissed. Raises as ``switch_on``, NotFound."""
        waiting = self._waiting(proposal_id)
        wanted = waiting.intervention
        name = wanted.name
        if not body.approve:
            dismissed = f"{body.because or 'no reason was given'} (dismissed: {wanted.because})"[:2000]
            return self._change(
                "dismiss", lambda state: intent.decided(state, proposal_id, self._person, False), dismissed, name
            )
        params = wanted.params if body.params is None else {k: v for k, v in body.params.items() if v is not None}
        because = f"{body.because}: {wanted.because}" if body.because else wanted.because
        checked = self._checked(wanted.model_copy(update={"params": params, "because": because[:1800]}))

        def change(state: DesiredState) -> DesiredState:
            allowed.check_company(name, state)
            return intent.decided(_with(state, proposal_id, checked), proposal_id, self._person, True)

        return self._change("approve", change, because[:1800], name)

    def stop_all(self, because: str) -> DesiredState:
        """Nothing is on and no rule acts, from the next step on."""
        return self._change("stop_all", intent.stopped, because)

    def arm(self, because: str) -> DesiredState:
        """Rules and persons may switch things on again."""
        return self._change("arm", intent.armed, because)

    def _checked(self, wanted: ActiveIntervention) -> ActiveIntervention:
        permissions, last_step = self._store.control.allowed_in(self._run)
        return allowed.checked(wanted, permissions, last_step)

    def _waiting(self, proposal_id: str) -> Proposal:
        for proposal in self._store.desired_of(self._run).proposals:
            if proposal.proposal_id == proposal_id:
                return proposal
        raise NotFound(f"no proposal {proposal_id} waits: it was decided or withdrawn")

    def _change(
        self,
        action: str,
        change: Callable[[DesiredState], DesiredState],
        because: str,
        name: str | None = None,
        expected_version: int | None = None,
    ) -> DesiredState:
        def asked(before: DesiredState, after: DesiredState) -> Asked:
            detail: dict[str, Any] = {
                "action": action,
                "name": name,
                "by": f"person:{self._person}",
                "because": because,
                "version": after.version,
                "before": _seen(before, name),
                "after": _seen(after, name),
            }
            detail |= {"said_to_be": self._said} if self._said else {}
            what = f"{_VERBS[action]} {name}" if name else _VERBS[action]
            return Asked(f"{self._person} {what}: {because}", detail)

        changed = self._store.control.change(self._run, change, asked, expected_version, self._by)
        event(
            _log, logging.INFO, "control", action=action, run=self._run, by=f"person:{self._person}", name=name,
            version=changed.version,
        )  # fmt: skip
        return changed


_VERBS = {
    "switch_on": "asked for",
    "switch_off": "switched off",
    "approve": "approved",
    "dismiss": "dismissed",
    "stop_all": "stopped everything",
    "arm": "armed the run again",
}


def _seen(state: DesiredState, name: str | None) -> dict[str, Any] | None:
    """What an event keeps of a state: of one intervention, or, where it is about all, of them all."""
    if name is None:
        return state.model_dump(mode="json", exclude={"updated", "version"})
    held = intent.on(state, name)
    return None if held is None else held.model_dump(mode="json")


def _with(state: DesiredState, proposal_id: str, wanted: ActiveIntervention) -> DesiredState:
    """``state`` in which the proposal wants ``wanted``."""
    proposals = [
        p.model_copy(update={"intervention": wanted}) if p.proposal_id == proposal_id else p for p in state.proposals
    ]
    return state.model_copy(update={"proposals": proposals})
