"""Histograms with fixed bins: the same edges in every run, so that counts from ranks and steps add up.

Logarithmic bins, ``PER_OCTAVE`` to a factor of two: a bin is 2 ** (1 / 16) - 1 = 4.4 % wide, and a quantile
read as its bin's mean is off by less than that. Values of magnitude below ``2 ** LOW`` share bin 0.
"""

import numpy as np

PER_OCTAVE = 16
LOW, HIGH = -13, 6
"""Exponents of two of the smallest and the largest edge: 1.2e-4 to 64."""

_NUM_OCTAVE_BINS = (HIGH - LOW) * PER_OCTAVE
MAX_BIN = _NUM_OCTAVE_BINS + 1
"""The overflow bin. Bin 0 holds magnitudes below 2**LOW, of either sign; bins -1 .. -MAX_BIN mirror the positive ones
for negative values."""

# Element k is the lower edge of bin k + 1. Looked up rather than computed from log2 of the value: rounding would put a
# value that lies on an edge into the wrong bin.
_EDGES = np.array([2.0 ** (LOW + k / PER_OCTAVE) for k in range(_NUM_OCTAVE_BINS + 1)])


def bin_of(values: np.ndarray) -> np.ndarray:
    """The bin of each value (any shape), as int16. Negative values fall in negative bins; NaN is refused.

    Raises:
        ValueError: a value is NaN: drop and count those first.
    """
    values = np.asarray(values, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError("a histogram of NaN: leave the invalid tokens out and count them")
    index = np.searchsorted(_EDGES, np.abs(values), side="right").astype(np.int16)
    signed: np.ndarray = np.where(values < 0, -index, index)
    return signed


def edges_of(index: int) -> tuple[float, float]:
    """The half-open interval [low, high) of magnitudes of a bin, signed: for bin -3, (-high, -low]."""
    size = abs(index)
    if size > MAX_BIN:
        raise ValueError(f"bin {index}: bins go from {-MAX_BIN} to {MAX_BIN}")
    low = 0.0 if size == 0 else float(_EDGES[size - 1])
    high = float("inf") if size == MAX_BIN else float(_EDGES[size])
    return (low, high) if index >= 0 else (-high, -low)


def histogram_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts and sums by bin.

    Returns:
        ``bin`` [K] int16 ascending, ``count`` [K] int64, ``total`` [K] float64: the non-empty bins.
    """
    values = np.asarray(values, dtype=np.float64).ravel()
    index, inverse, count = np.unique(bin_of(values), return_inverse=True, return_counts=True)
    total = np.bincount(inverse.ravel(), weights=values, minlength=index.size)
    return index, count.astype(np.int64), total.astype(np.float64)
