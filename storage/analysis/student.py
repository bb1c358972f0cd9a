"""Student's t, for intervals; of whole degrees of freedom, so that a finite sum is exact (scipy is no dependency)."""

import math

import numpy as np

_HALVINGS = 80


def t_quantile(confidence: float, degrees: int) -> float:
    """The t that a Student-t variable of ``degrees`` degrees of freedom stays within with this probability.

    Args:
        confidence: of both sides together, such as 0.95.
        degrees: at least 1.
    """
    low, high = 0.0, 1.0
    while _within(high, degrees) < confidence:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """P(|T| < t): Abramowitz and Stegun 26.7.3 (odd degrees) and 26.7.4 (even)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees == 1:
        return 2 * angle / math.pi
    first = 3.0 if degrees % 2 else 2.0
    factors = np.arange(first, degrees - 1, 2)
    # Each term is the one before times cos^2 (k - 1) / k.
    terms = np.cumprod(np.concatenate([[1.0], cosine**2 * (factors - 1) / factors]))
    if degrees % 2:
        return 2 / math.pi * (angle + sine * cosine * float(terms.sum()))
    return sine * float(terms.sum())
