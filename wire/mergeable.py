"""Values that can be added up exactly: over micro-batches, over ranks, in any order.

A value crosses the wire as the *state* of its merge rule (a short list of float64), never as a mean: a mean of means is
wrong as soon as two parts differ in size. The SQL view ``step_metric`` applies the same laws (``storage/views.py``); a
test holds the two to each other.

| rule       | state                      | merged by               | value                       |
|------------|----------------------------|-------------------------|-----------------------------|
| `mean`     | count, total               | adding                  | total / count               |
| `estimate` | count, total, variance     | adding                  | total / count, se known     |
| `sum`      | total                      | adding                  | total                       |
| `max`      | value                      | maximum                 | value                       |
| `std`      | count, mean, m2            | Chan et al. (1979)      | sqrt(m2 / (count - 1))      |
| `comoment` | count, mean_x, mean_y, cxy | Chan et al. (1979)      | cxy / count                 |
| `last`     | value                      | the lowest rank's value | value                       |
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

STATE_LENGTH = {"mean": 2, "estimate": 3, "sum": 1, "max": 1, "std": 3, "comoment": 4, "last": 1}
"""Merge rule -> how many numbers its state has."""


@dataclass(frozen=True, slots=True)
class Part:
    """One producer's share of a value: a merge rule and its state.

    Args:
        merge: a key of ``STATE_LENGTH``.
        state: the rule's numbers, in the order of the table above.

    Raises:
        ValueError: the rule is unknown, or the state has another length than the rule's.
    """

    merge: str
    state: tuple[float, ...]

    def __post_init__(self) -> None:
        if STATE_LENGTH.get(self.merge) != len(self.state):
            raise ValueError(
                f"merge rule {self.merge!r} with a state of {len(self.state)} numbers: "
                f"the rules and their lengths are {STATE_LENGTH}"
            )

    def __add__(self, other: "Part") -> "Part":
        if other.merge != self.merge:
            raise ValueError(f"cannot add a {other.merge!r} to a {self.merge!r}")
        return Part(self.merge, _ADD[self.merge](self.state, other.state))

    @property
    def value(self) -> float | None:
        """What the state says; None where nothing was measured (a mean over no tokens is not 0)."""
        return _VALUE[self.merge](self.state)

    @property
    def standard_error(self) -> float | None:
        """Standard error of an ``estimate``; None for rules that are exact."""
        if self.merge != "estimate" or self.state[0] == 0:
            return None
        return math.sqrt(max(self.state[2], 0.0)) / self.state[0]


State = tuple[float, ...]


def _add_elementwise(a: State, b: State) -> State:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _add_max(a: State, b: State) -> State:
    # Python's max keeps or loses a NaN by the order of its arguments. A NaN is news, and order must not matter.
    return a if math.isnan(a[0]) or a[0] >= b[0] else b


def _add_std(a: State, b: State) -> State:
    n = a[0] + b[0]
    if n == 0:
        return (0.0, 0.0, 0.0)
    gap = b[1] - a[1]
    return (n, a[1] + gap * b[0] / n, a[2] + b[2] + gap * gap * a[0] * b[0] / n)


def _add_comoment(a: State, b: State) -> State:
    n = a[0] + b[0]
    if n == 0:
        return (0.0, 0.0, 0.0, 0.0)
    gap_x, gap_y = b[1] - a[1], b[2] - a[2]
    share = b[0] / n
    return (n, a[1] + gap_x * share, a[2] + gap_y * share, a[3] + b[3] + gap_x * gap_y * a[0] * share)


_ADD: dict[str, Callable[[State, State], State]] = {
    "mean": _add_elementwise,
    "estimate": _add_elementwise,
    "sum": _add_elementwise,
    "max": _add_max,
    "std": _add_std,
    "comoment": _add_comoment,
    "last": lambda a, b: a,
}
_VALUE: dict[str, Callable[[State], float | None]] = {
    "mean": lambda s: s[1] / s[0] if s[0] else None,
    "estimate": lambda s: s[1] / s[0] if s[0] else None,
    "sum": lambda s: s[0],
    "max": lambda s: s[0],
    "std": lambda s: math.sqrt(max(s[2], 0.0) / (s[0] - 1)) if s[0] > 1 else None,
    "comoment": lambda s: s[3] / s[0] if s[0] else None,
    "last": lambda s: s[0],
}


def mean_of(values: np.ndarray, weights: np.ndarray | None = None) -> Part:
    """The mean of ``values`` (any shape, float64 sums), each counted once or ``weights`` times."""
    values = np.asarray(values, dtype=np.float64)
    if weights is None:
        return Part("mean", (float(values.size), float(values.sum())))
    weights = np.asarray(weights, dtype=np.float64)
    return Part("mean", (float(weights.sum()), float((values * weights).sum())))


def std_of(values: np.ndarray) -> Part:
    """The sample standard deviation of ``values`` (n - 1 in the denominator)."""
    values = np.asarray(values, dtype=np.float64)
    if values.size == 0:
        return Part("std", (0.0, 0.0, 0.0))
    centre = float(values.mean())
    return Part("std", (float(values.size), centre, float(((values - centre) ** 2).sum())))


def comoment_of(x: np.ndarray, y: np.ndarray) -> Part:
    """The covariance of ``x`` and ``y`` (same length), with n in the denominator."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.size == 0:
        return Part("comoment", (0.0, 0.0, 0.0, 0.0))
    mean_x, mean_y = float(x.mean()), float(y.mean())
    return Part("comoment", (float(x.size), mean_x, mean_y, float(((x - mean_x) * (y - mean_y)).sum())))


def largest_of(values: np.ndarray) -> Part | None:
    """The largest of ``values``, or None where there is none."""
    return Part("max", (float(np.max(values)),)) if np.size(values) else None


def merged(parts: Sequence[Part]) -> Part:
    """All ``parts`` (at least one, of one rule) added up."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
