"""The redistribution score s = p(1-p)[A]+ (SCOPE Eq. 11)."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.step import Floats, StepData
from entrostat.wire.mergeable import Part, mean_of


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``scope_score`` (no unit)."""
    return {} if step.advantage is None else {"scope_score": mean_of(scope_token(step))}


def scope_token(step: StepData) -> Floats:
    """p(1-p) max(A, 0) of each token [N]."""
    assert step.advantage is not None
    p = np.exp(step.logp)
    score: Floats = p * (1 - p) * np.maximum(step.advantage, 0.0)
    return score
