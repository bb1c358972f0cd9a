"""Where a step stands on the x axis: the step itself, minutes since the run's start, or tokens so far."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Series = Mapping[str, Any]
"""One curve as the server gives it: run, name, step, time, value, low, high, bucket_steps (docs/http.md)."""

Place = Callable[[float], float | None]
"""Step -> x; None where it has no place."""


def x_of(series: Series, x: str, tokens: Mapping[int, float] | None = None) -> list[float | None]:
    """The x values of a curve.

    Args:
        series: as the server gives it.
        x: as in ``View``.
        tokens: step -> response tokens up to it, for ``x="tokens"``.
    """
    if x == "time" and series["time"]:
        known = [t for t in series["time"] if t is not None]
        first = series.get("first_time") or (known[0] if known else 0.0)
        return [None if t is None else (t - first) / 60 for t in series["time"]]
    if x == "tokens" and tokens:
        return [tokens.get(step) for step in series["step"]]
    return list(series["step"])


def placed(curves: Sequence[Series], x: str, tokens: Mapping[int, float] | None = None) -> Place:
    """Where any step stands on the x axis of a run's ``curves``: between two of their steps, on the line between."""
    longest = max(curves, key=lambda curve: len(curve["step"]), default=None)
    if x == "step" or longest is None:
        return lambda step: step if x == "step" else None
    pairs = zip(longest["step"], x_of(longest, x, tokens), strict=True)
    known = {float(step): at for step, at in pairs if at is not None}
    steps = sorted(known)

    def place(step: float) -> float | None:
        if not steps:
            return None
        if step <= steps[0] or step >= steps[-1]:
            return known[steps[0] if step <= steps[0] else steps[-1]]
        after = bisect_left(steps, step)
        low, high = steps[after - 1], steps[after]
        return known[low] + (known[high] - known[low]) * (step - low) / (high - low)

    return place
