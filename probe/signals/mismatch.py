"""The mismatch between rollout engine and trainer: importance ratio, KL and distances on sampled tokens."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.step import Floats, StepData
from entrostat.wire.mergeable import Part, largest_of, mean_of

_OUTSIDE = np.log(2.0)


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """Every signal of ``wire/declared/mismatch.py``, over the tokens whose log-prob the engine reported.

    The trainer's side is its policy at the rollout: ``old_logp``, or what the ratio per token says it was, or where
    there is neither ``logp``: the policy as it is.
    """
    if step.rollout_logp is None:
        return {}
    trainer = _at_the_rollout(step)
    # -inf is what an engine says of a token that its own filter (top-k, top-p) would not have let through.
    known = np.isfinite(step.rollout_logp) & np.isfinite(trainer)
    trainer, rollout = trainer[known], step.rollout_logp[known]
    d = trainer - rollout
    found = {
        "rollout_kl": mean_of(-d),
        "rollout_kl_k3": mean_of(np.expm1(d) - d),
        "rollout_ratio_mean": mean_of(np.exp(d)),
        "rollout_ratio_out_share": mean_of(np.abs(d) > _OUTSIDE),
        "rollout_logp_gap": mean_of(np.abs(d)),
        "rollout_ratio_max": largest_of(np.exp(d)),
        "rollout_prob_gap_max": largest_of(np.abs(np.exp(trainer) - np.exp(rollout))),
    }
    return {name: part for name, part in found.items() if part is not None}


def _at_the_rollout(step: StepData) -> Floats:
    if step.old_logp is not None:
        return step.old_logp
    if step.log_ratio is not None and step.response_log_ratio is None:
        return step.logp - step.log_ratio
    return step.logp
