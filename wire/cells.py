"""A joint histogram of log-prob and advantage: what token covariances of several ranks are centred anew from.

A token's covariance (x - mean x)(A - mean A) depends on means that no rank knows alone. Each rank sends, for the cells
that are not empty, the count and the sums of x, A and xA; with the means of all ranks the sum of the covariances in a
cell is exact:

    sum (x - mx)(A - mA) = sum xA - mA sum x - mx sum A + n mx mA

Only the order of tokens inside a cell is lost: a mean over the top share takes the boundary's cell by its mean.
"""

import numpy as np

from entrostat.wire.bins import PER_OCTAVE, bin_of

CELLS_PER_OCTAVE = 4
_COARSE = PER_OCTAVE // CELLS_PER_OCTAVE


def cells_of(logp: np.ndarray, advantage: np.ndarray) -> dict[str, np.ndarray]:
    """The non-empty cells of N tokens, as the columns of the table ``cell`` (without ``step``), K rows.

    Args:
        logp: [N] nats, finite.
        advantage: [N] finite.
    """
    logp, advantage = np.asarray(logp, dtype=np.float64), np.asarray(advantage, dtype=np.float64)
    keys, place, count = np.unique(
        np.stack([_coarse(logp), _coarse(advantage)]), axis=1, return_inverse=True, return_counts=True
    )
    place, size = place.ravel(), count.size
    return {
        "logp_bin": keys[0].astype(np.int16),
        "advantage_bin": keys[1].astype(np.int16),
        "count": count.astype(np.int64),
        "sum_logp": np.bincount(place, weights=logp, minlength=size),
        "sum_advantage": np.bincount(place, weights=advantage, minlength=size),
        "sum_product": np.bincount(place, weights=logp * advantage, minlength=size),
    }


def _coarse(values: np.ndarray) -> np.ndarray:
    fine = bin_of(values)
    coarse: np.ndarray = np.sign(fine) * -(-np.abs(fine) // _COARSE)
    return coarse
