"""``entropy_floor_forecast``: at which step is the entropy used up, if it goes on as lately? (ours)"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

FLOOR = 0.1
"""Nats. exp(0.1) = 1.1: a policy that has hardly more than one continuation to choose from."""
WINDOW = 50
"""Last recorded steps that the trend is read from."""
MIN_POINTS = 8
_Z = 1.959963984540054  # of the normal distribution, 95 %


@dataclass(frozen=True, slots=True)
class FloorForecast:
    """The forecast.

    Args:
        floor: in nats.
        step: at which the trend reaches it.
        step_low, step_high: the same for the ends of the trend's 95 % interval.
        trend: ``linear`` or ``exponential``: which lay nearer to the points.
        refused: why there is none.
    """

    floor: float
    step: int | None = None
    step_low: int | None = None
    step_high: int | None = None
    trend: str | None = None
    refused: str | None = None


def floor_forecast(step: np.ndarray, entropy: np.ndarray, floor: float = FLOOR, window: int = WINDOW) -> FloorForecast:
    """Extend the trend of the last ``window`` recorded steps down to ``floor``.

    The slope is the median of the slopes between all pairs of points (Theil and Sen), of H for a straight line and of
    ln H for an exponential one; a few odd steps do not move it. Its 95 % interval is Kendall's. Refused where that
    interval holds 0: the entropy does not fall, or not by more than its noise.

    Args:
        step: [N] ascending.
        entropy: [N] nats.
        floor: in nats, above 0.
    """
    t, h = step[-window:].astype(np.float64), entropy[-window:].astype(np.float64)
    if t.size < MIN_POINTS:
        return FloorForecast(floor, refused=f"{t.size} steps: {MIN_POINTS} are needed for a trend")
    if not np.isfinite(h).all():
        return FloorForecast(floor, refused="the entropy has values that are not finite")
    if np.median(h[-MIN_POINTS:]) <= floor:
        return FloorForecast(floor, refused=f"the entropy is at or under {floor:g} nats already")
    trend, y, goal = "linear", h, floor
    if (h > 0).all() and _misfit(t, np.log(h), np.exp, h) < _misfit(t, h, np.asarray, h):
        trend, y, goal = "exponential", np.log(h), math.log(floor)
    middle, steep, flat = _slopes(t, y)
    if flat >= 0:
        return FloorForecast(floor, refused=f"the entropy does not fall over the last {t.size} steps")
    # The goal is after the last step: the trend may lie lower than the last points do.
    steps = [max(math.ceil(_reaches(t, y, slope, goal) - 1e-6), int(t[-1]) + 1) for slope in (middle, steep, flat)]
    return FloorForecast(floor, steps[0], min(steps), max(steps), trend)


def _slopes(t: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Median of the slopes between all pairs, and the lower and upper end of its interval."""
    first, second = np.triu_indices(t.size, 1)
    slopes = np.sort((y[second] - y[first]) / (t[second] - t[first]))
    n = t.size
    reach = _Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((slopes.size - reach) / 2))
    high = min(slopes.size - 1, math.ceil((slopes.size + reach) / 2))
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])


def _reaches(t: np.ndarray, y: np.ndarray, slope: float, goal: float) -> float:
    """Where the line of this slope through the middle of the points is at ``goal``."""
    return (goal - float(np.median(y - slope * t))) / slope


def _misfit(t: np.ndarray, y: np.ndarray, back: Callable[[np.ndarray], np.ndarray], h: np.ndarray) -> float:
    """Median distance, in nats, of the points from their line."""
    slope = _slopes(t, y)[0]
    return float(np.median(np.abs(back(slope * t + np.median(y - slope * t)) - h)))
