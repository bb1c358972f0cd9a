"""Covariance of log-prob and advantage, which drives the entropy (Entropy Mechanism Eq. 8, Table 1); gradient norms."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.step import Floats, StepData
from entrostat.wire.mergeable import Part, comoment_of, mean_of
from entrostat.wire.signals import COVARIANCE_TOPS


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``cov_mean`` (nats; advantages have no unit), ``cov_top_*``, ``token_grad_norm`` and ``token_grad_norm_logits``.

    ``cov_top_*`` only where this rank is the only one: their order depends on the means over all ranks, so several
    ranks send ``wire/cells.py``'s joint histogram instead, and the views make them from that.
    """
    if step.advantage is None:
        return {}
    found = {"cov_mean": comoment_of(step.logp, step.advantage)} | _gradient_norms(step, settings)
    if settings.num_ranks > 1:
        return found
    ordered = np.sort(cov_token(step))[::-1]
    for suffix, share in COVARIANCE_TOPS.items():
        # At least one token: a share of few tokens would be none at all, and the largest is what people look for.
        found[f"cov_top_{suffix}"] = mean_of(ordered[: max(1, round(share * ordered.size))])
    return found


def cov_token(step: StepData) -> Floats:
    """(logp - mean logp)(A - mean A) of each token [N], centred over this rank's step (Eq. 8)."""
    assert step.advantage is not None
    if step.logp.size == 0:
        return np.zeros(0)
    share: Floats = (step.logp - step.logp.mean()) * (step.advantage - step.advantage.mean())
    return share


def _gradient_norms(step: StepData, settings: Settings) -> dict[str, Part]:
    """|alpha| sqrt(1 - 2p + sum p^2), the norm of a token's gradient at the logits; times |h| at the head's weight.

    The second is the Frobenius norm of (e_y - p) h^T without building it (Exchange Eq. 4, 12).
    """
    assert step.advantage is not None
    if step.sum_p2 is None:
        return {}
    # (1-p)^2 + the others' p^2, so never negative but for rounding.
    spread = np.sqrt(np.maximum(1 - 2 * np.exp(step.logp) + step.sum_p2, 0.0))
    norm = np.abs(alpha(step, settings)) * spread
    found = {"token_grad_norm_logits": mean_of(norm)}
    if step.hidden_norm is not None:
        found["token_grad_norm"] = mean_of(norm * step.hidden_norm)
    return found


def alpha(step: StepData, settings: Settings) -> Floats:
    """What multiplies a token's log-prob gradient [N]: ratio x advantage, 0 where the clip has cut it off."""
    assert step.advantage is not None
    if step.log_ratio is None:
        return step.advantage
    ratio = np.exp(step.log_ratio)
    is_clipped = ((ratio > 1 + settings.eps_high) & (step.advantage > 0)) | (
        (ratio < 1 - settings.eps_low) & (step.advantage < 0)
    )
    factor: Floats = np.where(is_clipped, 0.0, ratio * step.advantage)
    return factor
