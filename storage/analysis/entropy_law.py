"""``entropy_law``: R = -a exp(H) + b, reward bought with entropy (Entropy Mechanism Eq. 6)."""

import math
from dataclasses import dataclass

import numpy as np

from entrostat.storage.analysis.student import t_quantile

MIN_POINTS = 8
MIN_SPREAD = 0.05
"""Nats between the highest and the lowest entropy: with less, exp(H) is as good as constant."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class EntropyLaw:
    """The fit.

    Args:
        a, b: of R = -a exp(H) + b.
        rmse: root of the mean squared residual, in units of the reward.
        ceiling: R(H = 0) = b - a, what is left to gain when the entropy is used up.
        ceiling_low, ceiling_high: its 95 % interval.
        num_points: (entropy, reward) pairs.
        refused: why there is no fit.
    """

    a: float | None = None
    b: float | None = None
    rmse: float | None = None
    ceiling: float | None = None
    ceiling_low: float | None = None
    ceiling_high: float | None = None
    num_points: int = 0
    refused: str | None = None


def entropy_law(entropy: np.ndarray, reward: np.ndarray) -> EntropyLaw:
    """Ordinary least squares of the reward on exp(H).

    The interval is the usual one of a prediction's mean, t_{n-2} s sqrt(1/n + (1 - mean x)^2 / sum (x - mean x)^2) at
    x = exp(0) = 1. It takes the residuals to be independent; those of neighbouring steps seldom are, so the truth is
    wider.

    Args:
        entropy: [N] nats.
        reward: [N], of the same steps.
    """
    n = int(entropy.size)
    if n < MIN_POINTS:
        return EntropyLaw(num_points=n, refused=f"{n} points of entropy and reward: {MIN_POINTS} are needed")
    with np.errstate(over="ignore"):
        x, y = np.exp(entropy.astype(np.float64)), reward.astype(np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return EntropyLaw(num_points=n, refused="entropy or reward has values that are not finite")
    if np.ptp(entropy) < MIN_SPREAD:
        return EntropyLaw(
            num_points=n, refused=f"the entropy spans {np.ptp(entropy):.3g} nats: {MIN_SPREAD} are needed for a slope"
        )
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ (y - y.mean())) / spread
    intercept = float(y.mean() - slope * x.mean())
    residual = y - (slope * x + intercept)
    squares = float(residual @ residual)
    error = math.sqrt(squares / (n - 2) * (1 / n + (1 - float(x.mean())) ** 2 / spread))
    reach = t_quantile(CONFIDENCE, n - 2) * error
    ceiling = intercept + slope
    return EntropyLaw(-slope, intercept, math.sqrt(squares / n), ceiling, ceiling - reach, ceiling + reach, n)
