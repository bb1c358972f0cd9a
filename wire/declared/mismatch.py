"""The mismatch between the engine that sampled the rollouts and the trainer, on the same weights and tokens.

d = trainer's log-prob - rollout's log-prob of a sampled token; exp(d) is the importance ratio between the two. It is
not the ratio of ``policy.py``, which is of the updates since the rollout: a rollout engine with other kernels, another
precision or older weights gives d other than 0 before the first update.
"""

from entrostat.wire.declared.signal import Merge, Signal

_TRAINERS = "trainers (verl rollout_corr/*, TRL sampling/*)"


def _declared(name: str, unit: str, meaning: str, merge: Merge = "mean", source: str = _TRAINERS) -> Signal:
    return Signal(name, unit, meaning, merge, source, ("rollout log-probs",))


SIGNALS = (
    _declared(
        "rollout_kl",
        "nats",
        "KL of the rollout engine's policy to the trainer's, estimated by -d on sampled tokens; d is the trainer's "
        "log-prob minus the engine's. May be negative.",
        source="verl rollout_corr/kl (k1 estimator)",
    ),
    _declared(
        "rollout_kl_k3",
        "nats",
        "The same KL, estimated by exp(d) - 1 - d, which is never negative.",
        source="verl rollout_corr/k3_kl (k3 estimator)",
    ),
    _declared(
        "rollout_ratio_mean",
        "1",
        "Importance ratio exp(d) between trainer and rollout engine, mean over tokens; 1 in expectation where the "
        "engine samples what it reports.",
    ),
    _declared("rollout_ratio_max", "1", "Largest importance ratio exp(d) of the step.", "max"),
    _declared(
        "rollout_ratio_out_share",
        "share",
        "Share of tokens with an importance ratio exp(d) outside 1/2 to 2.",
        source="ours, after verl rollout_corr/rollout_is_ratio_fraction_*",
    ),
    _declared("rollout_logp_gap", "nats", "Distance |d| of the two log-probs, mean over tokens."),
    _declared(
        "rollout_prob_gap_max",
        "1",
        "Largest distance of the two probabilities of a sampled token.",
        "max",
        "verl training/rollout_probs_diff_max",
    ),
)
