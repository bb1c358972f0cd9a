"""What the trainer said it did, from its events: activations of interventions, and the signals around them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np

from entrostat.storage.derived import metrics_of
from entrostat.storage.runs import key_of

ACKNOWLEDGEMENTS = ("intervention_on", "intervention_changed", "intervention_off", "intervention_refused")
"""Kinds of events in which the trainer's controller tells what it did."""


@dataclass(frozen=True, slots=True)
class Told:
    """One of those events.

    Args:
        step: the first step for which it holds.
        detail: name, params, by, because, selection, version; ``in_force`` and ``why`` or ``reason`` by kind.
    """

    step: int
    kind: str
    detail: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The intervention."""
        return str(self.detail["name"])


@dataclass(slots=True)
class Activation:
    """An intervention from the step at which it came on to the one at which it was off again.

    Args:
        first: how it came on.
        last: with which parameters it was on at last.
        changes: (step, parameters), later ones.
        end: first step without it; None while it is on.
        why_off: the trainer's words.
    """

    first: Told
    last: Told
    changes: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    end: int | None = None
    why_off: str | None = None

    @property
    def name(self) -> str:
        """The intervention."""
        return self.first.name

    @property
    def start(self) -> int:
        """First step it was on."""
        return self.first.step


def told(cursor: duckdb.DuckDBPyConnection, run_id: str) -> list[Told]:
    """The trainer's acknowledgements of a run, by step, then by its clock. Raises NotFound."""
    key_of(cursor, run_id)
    rows = cursor.execute(
        f"select step, kind, detail from event where run = ? and kind in ({', '.join('?' * len(ACKNOWLEDGEMENTS))}) "
        "and step is not null and producer != 'server' order by step, time",
        [run_id, *ACKNOWLEDGEMENTS],
    ).fetchall()
    found = [Told(step, kind, _object(detail)) for step, kind, detail in rows]
    return [one for one in found if _is_well_formed(one.detail)]


def _is_well_formed(detail: Mapping[str, Any]) -> bool:
    """Whether it says what a controller says: any producer may send an event of these kinds."""
    texts = (detail.get("name"), detail.get("by", ""), detail.get("because", ""))
    values = (detail.get("params", {}), detail.get("in_force", {}))
    is_told = all(isinstance(t, str) for t in texts) and all(isinstance(v, Mapping) for v in values)
    return is_told and isinstance(detail.get("version"), int | None)


def activations(events: Sequence[Told]) -> list[Activation]:
    """The activations that ``events`` tell of, by their first step.

    A refusal of something that was on ends it: what raised in the trainer is taken down.
    """
    done: list[Activation] = []
    on: dict[str, Activation] = {}
    for event in events:
        held = on.get(event.name)
        if event.kind in ("intervention_on", "intervention_changed"):
            if held is None:
                on[event.name] = Activation(event, event)
            elif event.detail.get("params") != held.last.detail.get("params") or event.kind == "intervention_changed":
                held.changes.append((event.step, dict(event.detail.get("params", {}))))
                held.last = event
        elif held is not None:
            held.end, held.why_off = event.step, str(event.detail.get("why") or event.detail.get("reason") or "")
            done.append(on.pop(event.name))
    return sorted([*done, *on.values()], key=lambda a: (a.start, a.name))


def refusals(events: Sequence[Told]) -> dict[str, Told]:
    """Name -> its refusal, of those whose last word was one."""
    last: dict[str, Told] = {}
    for event in events:
        if event.kind != "intervention_off" or last.get(event.name, event).kind != "intervention_refused":
            last[event.name] = event
    return {name: event for name, event in last.items() if event.kind == "intervention_refused"}


def effects(
    cursor: duckdb.DuckDBPyConnection, run_id: str, signals: Sequence[str], window: int
) -> list[dict[str, Any]]:
    """Each activation with the means of ``signals`` over ``window`` steps before and after it, and while it was on.

    Standard errors take steps as independent, which they are not: neighbouring steps are alike, and the errors are
    too small by as much. A difference is no effect of the intervention alone; ``also_on`` names what else was.

    Raises:
        NotFound: no such run.
    """
    found = activations(told(cursor, run_id))
    if not found:
        return []
    curves = _curves(cursor, run_id, signals, min(a.start for a in found) - window)
    return [
        {
            "name": a.name,
            "by": str(a.first.detail.get("by", "")),
            "because": str(a.first.detail.get("because", "")),
            "params": dict(a.first.detail.get("params", {})),
            "changes": [{"step": step, "params": dict(params)} for step, params in a.changes],
            "selection": str(a.first.detail.get("selection", "batch")),
            "start": a.start,
            "end": a.end,
            "why_off": a.why_off,
            "also_on": sorted({o.name for o in found if o is not a and _overlap(o, a, window)}),
            "signals": [_around(name, *curves[name], a, window) for name in signals],
        }
        for a in found
    ]


def _curves(
    cursor: duckdb.DuckDBPyConnection, run_id: str, signals: Sequence[str], first: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    asked = {f"name_{i}": name for i, name in enumerate(dict.fromkeys(signals))}
    chosen = metrics_of(asked.values(), "run = $run_id and step >= $first")
    rows = cursor.execute(
        f"select name, step, value from ({chosen.format(names=', '.join(f'${key}' for key in asked))}) "
        "where value is not null order by name, step",
        {"run_id": run_id, "first": first, **asked},
    ).fetchall()
    curves = {}
    for name in asked.values():
        own = [(step, value) for n, step, value in rows if n == name and math.isfinite(value)]
        curves[name] = (np.array([s for s, _ in own], np.int64), np.array([v for _, v in own], np.float64))
    return curves


def _overlap(other: Activation, a: Activation, window: int) -> bool:
    ends_after = other.end is None or other.end > a.start - window
    begins_before = a.end is None or other.start < a.end + window
    return ends_after and begins_before


def _around(name: str, steps: np.ndarray, values: np.ndarray, a: Activation, window: int) -> dict[str, Any]:
    before = _span(values[(steps >= a.start - window) & (steps < a.start)])
    on = _span(values[(steps >= a.start) & (steps < (a.end if a.end is not None else np.iinfo(np.int64).max))])
    after = _span(values[:0] if a.end is None else values[(steps >= a.end) & (steps < a.end + window)])
    return {
        "signal": name,
        "before": before,
        "on": on,
        "after": after,
        "on_minus_before": _difference(on, before),
        "after_minus_before": _difference(after, before),
    }


def _span(values: np.ndarray) -> dict[str, Any]:
    n = int(values.size)
    return {
        "mean": float(values.mean()) if n else None,
        "se": float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else None,
        "num_steps": n,
    }


def _difference(later: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, float | None]:
    has_means = later["mean"] is not None and before["mean"] is not None
    has_errors = later["se"] is not None and before["se"] is not None
    return {
        "value": later["mean"] - before["mean"] if has_means else None,
        "se": math.hypot(later["se"], before["se"]) if has_errors else None,
    }


def _object(text: str | None) -> dict[str, Any]:
    try:
        read = json.loads(text) if text else {}
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
