"""How far the policy has moved from the one that sampled: clip fractions, approximate KL, the largest ratio."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.step import StepData
from entrostat.wire.mergeable import Part, largest_of, mean_of


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``clip_fraction_low``, ``clip_fraction_high`` (shares), ``approx_kl`` (nats), ``ratio_max``.

    Over tokens, or over responses where the trainer's ratio is one a response (RLOO, GSPO).
    """
    log_ratio, advantage = step.log_ratio, step.advantage
    if step.response_log_ratio is not None:
        log_ratio, advantage = step.response_log_ratio, step.response_advantage
    if log_ratio is None:
        return {}
    ratio = np.exp(log_ratio)
    # r - 1 - ln r is never negative and unbiased under the old policy (Schulman's k3).
    found = {"approx_kl": mean_of(np.expm1(log_ratio) - log_ratio)}
    if (largest := largest_of(ratio)) is not None:
        found["ratio_max"] = largest
    if advantage is not None:
        found["clip_fraction_low"] = mean_of((ratio < 1 - settings.eps_low) & (advantage < 0))
        found["clip_fraction_high"] = mean_of((ratio > 1 + settings.eps_high) & (advantage > 0))
    return found
