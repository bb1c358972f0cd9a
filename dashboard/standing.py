"""What is wanted in a run against what its trainer says is in force: one line for each intervention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from entrostat.dashboard.spans import Event, Span, in_force, since
from entrostat.wire.messages import ActiveIntervention, DesiredState, Proposal


@dataclass(frozen=True, slots=True)
class Line:
    """One intervention.

    Args:
        name: of it.
        state: ``on``; ``asked`` (wanted, not acknowledged yet); ``changing`` (in force with other parameters than
            wanted); ``ending`` (in force, not wanted any more); ``refused`` (the trainer said no); ``over`` (its last
            step has passed).
        wanted: as it should be, where it should.
        held: as it is in force, where it is.
        since: first step it has been in force without a gap.
        note: for ``refused`` the trainer's reason.
    """

    name: str
    state: str
    wanted: ActiveIntervention | None
    held: Span | None
    since: int | None
    note: str = ""

    @property
    def params(self) -> Mapping[str, Any]:
        """As wanted; where it is ending, as they are."""
        return self.wanted.params if self.wanted else (self.held.params if self.held else {})

    @property
    def by(self) -> str:
        """Who wants it, or wanted it."""
        return self.wanted.by if self.wanted else (self.held.by if self.held else "")

    @property
    def because(self) -> str:
        """Why."""
        return self.wanted.because if self.wanted else (self.held.because if self.held else "")


def lines(desired: DesiredState, spans: Sequence[Span], events: Sequence[Event], last_step: int | None) -> list[Line]:
    """A line for each intervention that is wanted or in force.

    Args:
        desired: what is wanted.
        spans: as in ``spans_of``.
        events: the trainer's, in order.
        last_step: of the run.
    """
    held = in_force(spans)
    found = [
        _wanted(w, held.get(w.name), since(spans, w.name), _refusal(w, events), last_step)
        for w in desired.interventions
    ]
    names = {w.name for w in desired.interventions}
    return found + [
        Line(name, "ending", None, span, since(spans, name)) for name, span in held.items() if name not in names
    ]


def evidence(proposal: Proposal, events: Sequence[Event]) -> dict[str, Any]:
    """The signal values behind a proposal, from the event with which its rule told of it; empty where there is none."""
    rule = proposal.intervention.by.partition(":")[2]
    for event in reversed(events):
        said = event.get("detail") or {}
        if event["kind"] == "rule_proposed" and rule in (said.get("rule"), said.get("name")):
            values = said.get("values")
            return dict(values) if isinstance(values, Mapping) else {}
    return {}


def _wanted(
    wanted: ActiveIntervention, held: Span | None, start: int | None, refusal: str | None, last_step: int | None
) -> Line:
    if held is not None:
        is_same = (held.params, held.by, held.because) == (wanted.params, wanted.by, wanted.because)
        return Line(wanted.name, "on" if is_same else "changing", wanted, held, start)
    if refusal is not None:
        return Line(wanted.name, "refused", wanted, None, None, refusal)
    is_over = wanted.until_step is not None and last_step is not None and last_step >= wanted.until_step
    return Line(wanted.name, "over" if is_over else "asked", wanted, None, None)


def _refusal(wanted: ActiveIntervention, events: Sequence[Event]) -> str | None:
    """The trainer's reason, if the last it said of this very wish was no."""
    for event in reversed(events):
        said = event.get("detail") or {}
        if event["kind"] == "intervention_refused" and said.get("name") == wanted.name:
            asked = (said.get("params"), said.get("by"), said.get("because"))
            is_this = asked == (wanted.params, wanted.by, wanted.because)
            return str(said.get("reason", "")) if is_this else None
    return None
