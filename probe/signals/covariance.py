"""Covariance of log-prob and advantage, which drives the entropy (Entropy Mechanism Eq. 7, 8, Table 1)."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.signals.groups import complete_groups
from entrostat.probe.step import Floats, StepData
from entrostat.wire.mergeable import Part, comoment_of, mean_of
from entrostat.wire.signals import COVARIANCE_TOPS


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``cov_mean``, ``cov_top_*`` and, where there are groups, ``cov_group``. Nats (advantages have no unit)."""
    if step.advantage is None:
        return {}
    found = {"cov_mean": comoment_of(step.logp, step.advantage)}
    ordered = np.sort(cov_token(step))[::-1]
    for suffix, share in COVARIANCE_TOPS.items():
        # At least one token: a share of few tokens would be none at all, and the largest is what people look for.
        found[f"cov_top_{suffix}"] = mean_of(ordered[: max(1, round(share * ordered.size))])
    if step.prompt is not None and step.response_advantage is not None:
        found["cov_group"] = _cov_group(step, settings)
    return found


def cov_token(step: StepData) -> Floats:
    """(logp - mean logp)(A - mean A) of each token [N], centred over this rank's step (Eq. 8)."""
    assert step.advantage is not None
    if step.logp.size == 0:
        return np.zeros(0)
    share: Floats = (step.logp - step.logp.mean()) * (step.advantage - step.advantage.mean())
    return share


def _cov_group(step: StepData, settings: Settings) -> Part:
    """Per prompt Cov(x, exp(x) A) over its responses, x the length-normalised log-prob; mean over prompts (Eq. 7)."""
    assert step.prompt is not None
    assert step.response_advantage is not None
    logp = step.mean_by_response(step.logp)
    values = []
    for members in complete_groups(step.prompt, settings.group_size):
        x = logp[members]
        if members.size > 1 and np.isfinite(x).all():
            y = np.exp(x) * step.response_advantage[members]
            values.append(((x - x.mean()) * (y - y.mean())).mean())
    return mean_of(np.array(values))
