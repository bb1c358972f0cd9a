"""A rank's log-probs and advantages in cells: what token covariances of several ranks are centred anew from.

A token's covariance (x - mean x)(A - mean A) depends on means that no rank knows alone. Each rank sends its tokens in
cells of like covariance, each with its count and the sums of x, A and xA; with the means mx, mA of all ranks the sum of
the covariances in a cell is exact:

    sum (x - mx)(A - mA) = sum xA - mA sum x - mx sum A + n mx mA

Only the order of tokens inside a cell is lost: a mean over the top share takes the boundary's cell by its mean. So the
rank's highest tokens are cells of their own, those that a top share may end in are in fine cells, the others in coarse
ones. Cells are bins of (x - the rank's mean x, A - the rank's mean A), not of x and A: what matters of two nearly equal
log-probs is their distance from the mean. They differ from rank to rank, and need not be the same.
"""

import numpy as np

from entrostat.wire.bins import PER_OCTAVE, bin_of

NUM_ALONE = 64
"""Tokens of the highest covariance that are cells of their own."""
FINE_SHARE = 0.4
"""Share of tokens, by covariance, in fine cells: twice the largest share that is asked for."""
FINE_PER_OCTAVE, COARSE_PER_OCTAVE = 4, 1

_SPAN = 4096
"""More than the bins of either sign."""


def cells_of(logp: np.ndarray, advantage: np.ndarray) -> dict[str, np.ndarray]:
    """The non-empty cells of N tokens, as the columns of the table ``cell`` (without ``step``), K rows.

    Args:
        logp: [N] nats, finite.
        advantage: [N] finite.
    """
    logp, advantage = np.asarray(logp, dtype=np.float64), np.asarray(advantage, dtype=np.float64)
    place, count = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if logp.size:
        _, place, count = np.unique(_keys(logp, advantage), return_inverse=True, return_counts=True)
    columns: dict[str, np.ndarray] = {"cell": np.arange(count.size, dtype=np.int32), "count": count.astype(np.int64)}
    for name, weights in zip(_SUMS, (logp, advantage, logp * advantage), strict=True):
        columns[name] = np.bincount(place, weights=weights, minlength=count.size)
    return columns


_SUMS = ("sum_logp", "sum_advantage", "sum_product")


def _keys(logp: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    """[N] the same number for tokens of the same cell."""
    x, a = logp - logp.mean(), advantage - advantage.mean()
    order = np.argsort(-(x * a), kind="stable")
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    fine = _joint(x, a, FINE_PER_OCTAVE)
    coarse = _joint(x, a, COARSE_PER_OCTAVE)
    keys = np.where(rank < FINE_SHARE * rank.size, 2 * fine, 2 * coarse + 1)
    return np.where(rank < NUM_ALONE, -1 - rank, keys)


def _joint(x: np.ndarray, a: np.ndarray, per_octave: int) -> np.ndarray:
    joined: np.ndarray = (_coarsened(x, per_octave) + _SPAN) * 2 * _SPAN + _coarsened(a, per_octave) + _SPAN
    return joined


def _coarsened(values: np.ndarray, per_octave: int) -> np.ndarray:
    fine = bin_of(values).astype(np.int64)
    coarse: np.ndarray = np.sign(fine) * -(-np.abs(fine) // (PER_OCTAVE // per_octave))
    return coarse
