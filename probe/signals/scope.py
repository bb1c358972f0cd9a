"""The redistribution score s = p(1-p)[A]+ (SCOPE Eq. 11) and how few tokens carry it."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.step import Floats, StepData
from entrostat.wire.mergeable import Part, mean_of

_TOP = 0.05


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``scope_score`` (no unit) and ``scope_mass_top5`` (share of the total score)."""
    if step.advantage is None:
        return {}
    score = scope_token(step)
    ordered = np.sort(score)[::-1]
    top = float(ordered[: max(1, round(_TOP * ordered.size))].sum())
    # A share with its own denominator: parts add as (sum of scores, sum of the top's), not as a mean of shares.
    return {"scope_score": mean_of(score), "scope_mass_top5": Part("mean", (float(score.sum()), top))}


def scope_token(step: StepData) -> Floats:
    """p(1-p) max(A, 0) of each token [N]."""
    assert step.advantage is not None
    p = np.exp(step.logp)
    score: Floats = p * (1 - p) * np.maximum(step.advantage, 0.0)
    return score
