"""How far the policy is from the one that sampled."""

from entrostat.wire.declared.signal import Signal

SIGNALS = (
    Signal(
        "clip_fraction_low",
        "share",
        "Share of tokens with A < 0 and a ratio below 1 - eps_low, of all tokens.",
        "mean",
        "trainers",
        ("old log-probs", "advantages"),
    ),
    Signal(
        "clip_fraction_high",
        "share",
        "Share of tokens with A > 0 and a ratio above 1 + eps_high, of all tokens.",
        "mean",
        "trainers",
        ("old log-probs", "advantages"),
    ),
    Signal(
        "approx_kl",
        "nats",
        "KL of the old policy to the current one, estimated by r - 1 - ln r on sampled tokens.",
        "mean",
        "trainers (k3 estimator)",
        ("old log-probs",),
    ),
    Signal(
        "ratio_max",
        "1",
        "Largest probability ratio of the step.",
        "max",
        "trainers",
        ("old log-probs",),
    ),
)
