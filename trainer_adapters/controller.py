"""From what is wanted to what is in force: at step boundaries, on all ranks at once, within what the user allowed.

Rank 0 takes the newest desired state and hands it to the others; each then comes to the same conclusion by itself. What
the server wants and the user did not allow, or the trainer cannot do, is refused with a reason, as an event.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from entrostat.trainer_adapters.board import Board
from entrostat.wire.errors import BadParameter
from entrostat.wire.interventions import named
from entrostat.wire.messages import ActiveIntervention, DesiredState, Mode, Permissions, Thresholds

log = logging.getLogger("entrostat")

Say = Callable[[str, str, int, dict[str, Any]], None]
"""(kind, message, step, detail): one event in the run's record."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What rank 0 heard, the same for all ranks.

    Args:
        desired: the newest desired state.
        thresholds: the newest scores of the last whole step, for ``selection: step``.
        is_lost: the server has been silent for longer than the grace time.
        has_heard: it has answered since this process began; before, what a checkpoint kept stays.
        waited_s: how long rank 0 has been in a pause.
    """

    desired: DesiredState
    thresholds: Thresholds | None = None
    is_lost: bool = False
    has_heard: bool = True
    waited_s: float = 0.0


@dataclass(slots=True)
class Controller:
    """Decides what is in force.

    Args:
        permissions: what the user allowed.
        board: where it is put up.
        say: writes an event; on rank 0 only.
        in_force: name -> the intervention as it was asked for, and is.
        refused: what was refused and why, of the newest desired state: said once.
        broken: what raised in this process, and why; it is not put up again.
        version: of the desired state that is in force.
        is_lost: the server is silent.
        by_step: those whose tokens are chosen over the whole last step, by a threshold that the server handed down.
    """

    permissions: Permissions
    board: Board
    say: Say
    in_force: dict[str, ActiveIntervention] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    version: int = 0
    is_lost: bool = False
    by_step: set[str] = field(default_factory=set)

    def at_boundary(self, step: int, intent: Intent) -> None:
        """Put up what is wanted for the step that begins.

        Args:
            step: its number.
            intent: the same on all ranks.
        """
        if self.permissions.mode == Mode.observe:
            return
        self._took_down(step)
        wanted = self._wanted(step, intent)
        params = {name: self._params(i, intent.thresholds) for name, i in wanted.items()}
        try:
            self.board.put(params)
        except ValueError as error:  # two that cannot be combined: none of the new ones
            for name in wanted.keys() - self.in_force.keys():
                self._refuse(step, wanted[name], str(error))
            wanted = {name: i for name, i in self.in_force.items() if name in wanted}
            self.board.put({name: self._params(i, intent.thresholds) for name, i in wanted.items()})
        self._tell(step, wanted, intent)
        self._tell_selection(step, wanted, intent)
        self.in_force, self.version = wanted, intent.desired.version

    def _wanted(self, step: int, intent: Intent) -> dict[str, ActiveIntervention]:
        if intent.is_lost:
            return self._when_lost(step)
        if self.is_lost:
            self.is_lost = False
            self.say("server_back", "the server answers again: its desired state counts", step, {})
        if not intent.has_heard:
            return self._not_over(step)
        if not intent.desired.is_armed:
            return {}
        found: dict[str, ActiveIntervention] = {}
        still_refused: dict[str, str] = {}
        for i in intent.desired.interventions:
            if i.until_step is not None and step > i.until_step:
                continue
            reason = self._refusal(i)
            if reason is None:
                found[i.name] = i
                continue
            if self.refused.get(i.name) != reason:
                self._refuse(step, i, reason)
            still_refused[i.name] = reason
        self.refused = still_refused
        return found

    def _when_lost(self, step: int) -> dict[str, ActiveIntervention]:
        on_lost = self.permissions.on_lost
        if not self.is_lost and self.in_force:
            self.is_lost = True
            what = "what is on stays on" if on_lost == "hold" else "everything is switched off"
            message = f"the server has been silent for {self.permissions.grace_s:g} s: {what}"
            self.say("server_lost", message, step, {"on_lost": on_lost})
        return {} if on_lost == "revert" else self._not_over(step)

    def _not_over(self, step: int) -> dict[str, ActiveIntervention]:
        return {n: i for n, i in self.in_force.items() if i.until_step is None or step <= i.until_step}

    def _refusal(self, i: ActiveIntervention) -> str | None:
        p = self.permissions
        if i.name in self.broken:
            return self.broken[i.name]
        if p.mode == Mode.advise and not i.by.startswith("person:"):
            return "this run is in mode advise: a person has to approve it"
        try:
            params = named(i.name).checked(dict(i.params))
        except BadParameter as error:
            return str(error)
        if i.name not in p.allow:
            return f"not allowed in this run, which allows {', '.join(sorted(p.allow)) or 'nothing'}"
        return named(i.name).outside(params, p.bounds)

    def _params(self, i: ActiveIntervention, thresholds: Thresholds | None) -> dict[str, Any]:
        params: dict[str, Any] = named(i.name).checked(dict(i.params))
        if i.selection == "step" and thresholds is not None and i.name in thresholds.values:
            params["threshold"] = thresholds.values[i.name]
        return params

    # Telling ----------------------------------------------------------------------------------------------------

    def _took_down(self, step: int) -> None:
        """What raised in the last step is out of force, for the rest of this process."""
        if self.board.failure is not None:
            for name in [n for n in self.in_force if named(n).acts_on not in ("trainer", "sampling")]:
                self.broken[name] = self.board.failure
                self._refuse(step, self.in_force.pop(name), self.board.failure)
            self.board.failure = None

    def _refuse(self, step: int, i: ActiveIntervention, reason: str) -> None:
        self.refused[i.name] = reason
        self.say("intervention_refused", f"{i.name} was refused: {reason}", step, {**_said(i), "reason": reason})

    def _tell(self, step: int, wanted: Mapping[str, ActiveIntervention], intent: Intent) -> None:
        for name, i in wanted.items():
            before = self.in_force.get(name)
            if before is not None and _same(before, i):
                continue
            kind, verb = ("intervention_on", "is on") if before is None else ("intervention_changed", "was changed")
            detail = {**_said(i), "in_force": self.board.active[name], "version": intent.desired.version}
            self.say(kind, f"{name} {verb}, by {i.by.partition(':')[2]}: {i.because}", step, detail)
        for name, i in self.in_force.items():
            if name not in wanted:
                why = self._why_off(step, i, intent)
                detail = {**_said(i), "version": intent.desired.version, "why": why}
                self.say("intervention_off", f"{name} is off: {why}", step, detail)

    def _tell_selection(self, step: int, wanted: Mapping[str, ActiveIntervention], intent: Intent) -> None:
        """Once for each change: whether tokens are chosen over the whole last step, or in each micro-batch."""
        by_step = {n for n, i in wanted.items() if i.selection == "step" and "threshold" in self.board.active[n]}
        for name in sorted(by_step - self.by_step):
            threshold = self.board.active[name]["threshold"]
            message = f"{name} takes the tokens of the whole step from now on: those that score {threshold:.4g} or more"
            of_step = intent.thresholds.step if intent.thresholds else None
            self.say("selection", message, step, {"name": name, "selection": "step", "of_step": of_step})
        for name in sorted(self.by_step - by_step):
            if name in wanted:
                message = f"{name} takes the tokens of each micro-batch from now on"
                self.say("selection", message, step, {"name": name, "selection": "batch"})
        self.by_step = by_step

    def _why_off(self, step: int, i: ActiveIntervention, intent: Intent) -> str:
        if intent.is_lost and self.permissions.on_lost == "revert":
            return "the server is silent"
        if not intent.desired.is_armed:
            return "everything was stopped"
        if i.until_step is not None and step > i.until_step:
            return f"it was asked for until step {i.until_step}"
        return self.refused.get(i.name, "it is not asked for any more")

    # Checkpoints ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, as plain JSON values."""
        return {
            "version": self.version,
            "in_force": [i.model_dump(mode="json") for i in self.in_force.values()],
            "states": {name: state for name, state in self.board.states.items() if state is not None},
        }

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was written; what is not allowed any more stays off."""
        found = [ActiveIntervention.model_validate(i) for i in kept["in_force"]]
        self.in_force = {i.name: i for i in found if self._refusal(i) is None}
        self.version = kept["version"]
        self.board.put({name: self._params(i, None) for name, i in self.in_force.items()})
        self.board.states.update({n: s for n, s in kept["states"].items() if n in self.in_force})


def _said(i: ActiveIntervention) -> dict[str, Any]:
    return {"name": i.name, "params": dict(i.params), "by": i.by, "because": i.because, "selection": i.selection}


def _same(one: ActiveIntervention, other: ActiveIntervention) -> bool:
    return (one.params, one.by, one.because, one.selection) == (other.params, other.by, other.because, other.selection)
