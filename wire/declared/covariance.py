"""Covariance of log-prob and advantage, which drives the entropy, and the size of tokens' gradients."""

from entrostat.wire.declared.signal import Signal

COVARIANCE_TOPS = {"0_02pct": 0.0002, "0_2pct": 0.002, "2pct": 0.02, "20pct": 0.2}
"""Suffix of ``cov_top_*`` -> the share of tokens (Entropy Mechanism, Table 1)."""

_TOP_NOTE = "Exact from one rank; from several by cells of like tokens, see probe/signals/README.md."

SIGNALS = (
    Signal(
        "cov_mean",
        "nats",
        "Covariance of the tokens' log-prob and advantage, centred over all valid tokens.",
        "comoment",
        "Entropy Mechanism Eq. 8",
        ("advantages",),
    ),
    *(
        Signal(
            f"cov_top_{suffix}",
            "nats",
            f"Mean token covariance over the top {share:.2%} of tokens. {_TOP_NOTE}",
            "mean",
            "Entropy Mechanism Table 1",
            ("advantages",),
        )
        for suffix, share in COVARIANCE_TOPS.items()
    ),
    Signal(
        "cov_group",
        "nats",
        "Covariance over a prompt's responses of length-normalised log-prob and probability x advantage; mean over "
        "prompts with at least two responses.",
        "derived",
        "Entropy Mechanism Eq. 7",
        ("advantages", "groups"),
    ),
    Signal(
        "token_grad_norm",
        "1",
        "Norm of a token's gradient at the head, |alpha| sqrt(1 - 2p + sum p^2) |h|, alpha = ratio x advantage, 0 "
        "where clipped; mean over tokens.",
        "mean",
        "Exchange Eq. 4, 12",
        ("advantages", "sum of squares", "hidden states"),
    ),
    Signal(
        "token_grad_norm_logits",
        "1",
        "The same at the logits, without |h|.",
        "mean",
        "Exchange Eq. 4, 12",
        ("advantages", "sum of squares"),
    ),
)
