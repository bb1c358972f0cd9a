"""From a run's events to spans: which intervention was in force from which step to which, with what, by whom, why."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from entrostat.wire.client import Client

IN_FORCE = ("intervention_on", "intervention_changed", "intervention_off", "intervention_refused")
"""Kinds of events with which a trainer says what is in force. Their detail names the intervention."""
OF_RULES = ("rule_fired", "rule_ended", "rule_proposed", "rule_withdrawn")
"""Kinds of events of rules that are marked. Adjustments of a closed loop are many and show as changes of a span."""
OTHERS = ("warning", "dropped", "resumed", "run_ended", "server_lost", "server_back")
MOST_EVENTS = 5000

Event = Mapping[str, Any]
"""An event as the server gives it: step, kind, message, detail."""


@dataclass(frozen=True, slots=True)
class Span:
    """An intervention in force with the same parameters, from one step to another.

    Args:
        name: of the intervention.
        start: first step it was in force.
        end: first step it was not, or not so, any more; None: it still is.
        by: ``rule:...`` or ``person:...``.
        because: the reason, in the words of who wanted it.
        params: as they were asked for.
        ended: why it ended; empty where it was changed, or still is.
    """

    name: str
    start: int
    end: int | None
    by: str
    because: str
    params: Mapping[str, Any] = field(default_factory=dict)
    ended: str = ""

    @property
    def is_of_rule(self) -> bool:
        """Whether a rule wanted it; else a person."""
        return self.by.startswith("rule:")


def spans_of(events: Sequence[Event]) -> list[Span]:
    """The spans that a trainer's events tell of, by start. ``events`` are in the order in which they happened."""
    open_now: dict[str, Span] = {}
    done: list[Span] = []
    for event in events:
        said = event.get("detail") or {}
        name, step = said.get("name"), event.get("step")
        if event["kind"] not in IN_FORCE or event["kind"] == "intervention_refused" or not name or step is None:
            continue
        if not (isinstance(name, str) and isinstance(said.get("params") or {}, Mapping)):
            continue  # any producer may send an event of these kinds
        held = open_now.pop(name, None)
        is_off = event["kind"] == "intervention_off"
        if held is not None and step > held.start:  # changed twice at one boundary: the later one counts
            done.append(_ended(held, step, str(said.get("why", "")) if is_off else ""))
        if not is_off:
            open_now[name] = Span(
                name, step, None, str(said.get("by", "")), str(said.get("because", "")), dict(said.get("params") or {})
            )
    return sorted([*done, *open_now.values()], key=lambda span: (span.start, span.name))


def in_force(spans: Sequence[Span]) -> dict[str, Span]:
    """Name -> its span, of those that have not ended."""
    return {span.name: span for span in spans if span.end is None}


def since(spans: Sequence[Span], name: str) -> int | None:
    """The step from which ``name`` has been in force without a gap, whatever was changed of it; None where it is not.

    A span that ends where the next begins was changed, not switched off.
    """
    own = sorted((s for s in spans if s.name == name), key=lambda s: s.start, reverse=True)
    if not own or own[0].end is not None:
        return None
    first = own[0].start
    for span in own[1:]:
        if span.end != first or span.ended:
            break
        first = span.start
    return first


def fetched(client: Client, run: str, kinds: Sequence[str] = (*IN_FORCE, *OF_RULES, *OTHERS)) -> list[dict[str, Any]]:
    """The run's events of some kinds, in the order in which they happened; at most the newest ``MOST_EVENTS``."""
    named = run.replace("'", "''")
    wanted = ", ".join(f"'{kind}'" for kind in kinds)
    statement = (
        f"select step, kind, message, detail from event where run = '{named}' and kind in ({wanted}) "
        f"order by time desc limit {MOST_EVENTS}"
    )
    rows, _ = client.sql(statement, MOST_EVENTS)
    return [{**row, "detail": _object(row["detail"])} for row in reversed(rows.to_pylist())]


def absent_reasons(client: Client, run: str) -> dict[str, str]:
    """Signal -> why the run cannot have it, as its trainer said."""
    said = [event["detail"] for event in fetched(client, run, ["absent"])]
    told = ((reason, names) for detail in said for reason, names in detail.items() if isinstance(names, list))
    return {str(name): reason for reason, names in told for name in names}


def _ended(span: Span, end: int, why: str) -> Span:
    return Span(span.name, span.start, end, span.by, span.because, span.params, why)


def _object(text: str | None) -> dict[str, Any]:
    try:
        read = json.loads(text) if text else {}
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
