"""``stage``: does the entropy still move, or has it come to its plateau? (Exchange Fig. 1)"""

from dataclasses import dataclass

import numpy as np

WINDOW = 20
"""Recorded steps over which a change is measured, and for which it has to stay small."""
SHARE = 0.02
"""A change under this share of the range is none."""
NUM_ERRORS = 4.0
"""Nor is one within so many standard errors of its own: with 3, the noise of a few hundred steps goes beyond it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What stage a run is in.

    Args:
        stage: ``rising`` (the reward rises while the entropy moves) or ``plateau``.
        plateau_from: first step of the plateau.
        entropy_range: highest minus lowest entropy since the baseline, in nats.
        refused: why nothing can be said.
    """

    stage: str | None = None
    plateau_from: int | None = None
    entropy_range: float | None = None
    refused: str | None = None


def stage(
    step: np.ndarray, entropy: np.ndarray, from_step: int | None = None, window: int = WINDOW, share: float = SHARE
) -> Stage:
    """The stage at the last step.

    A step is calm when the line fitted to the ``window`` recorded steps that end there changes, over the window, by at
    most ``share`` of the range of the entropy since the baseline, or by no more than ``NUM_ERRORS`` standard errors of
    the fit (what the noise alone would do). The plateau is the stretch of calm steps that lasts until now, if it is at
    least ``window`` long: a pause before the fall, or between two, is none.

    Decision: the papers draw the line by eye. The change is that over a window, not that from one step to the next:
    of a steady fall each step is less than 2 % of the range as soon as it has gone on for 50 steps.

    Args:
        step: [N] ascending.
        entropy: [N] nats, finite.
        from_step: the baseline's last step; the first one where there is no baseline.
    """
    since = step >= (step[0] if from_step is None and step.size else from_step or 0)
    step, entropy = step[since].astype(np.float64), entropy[since].astype(np.float64)
    if step.size < 2 * window:
        return Stage(refused=f"{step.size} steps since the baseline: {2 * window} are needed")
    if not np.isfinite(entropy).all():
        return Stage(refused="the entropy has values that are not finite")
    height = float(np.ptp(entropy))
    change, error = _changes(step, entropy, window)
    is_calm = change <= np.maximum(share * height, NUM_ERRORS * error)
    restless = np.flatnonzero(~is_calm)
    first = int(restless[-1]) + 1 if restless.size else 0
    if is_calm.size - first < window:
        return Stage("rising", None, height)
    return Stage("plateau", int(step[first]), height)


def _changes(step: np.ndarray, entropy: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """|Change| over each window [N - window + 1] by its fitted line, and the change's standard error."""
    x = np.lib.stride_tricks.sliding_window_view(step, window)
    y = np.lib.stride_tricks.sliding_window_view(entropy, window)
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    spread = (x * x).sum(1)
    slope = (x * y).sum(1) / spread
    left = ((y - slope[:, None] * x) ** 2).sum(1) / (window - 2)
    length = x[:, -1] - x[:, 0]
    return np.abs(slope) * length, np.sqrt(left / spread) * length
