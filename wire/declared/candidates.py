"""What the policy gives to the candidates it does not sample."""

from entrostat.wire.declared.signal import Signal

RANKS = (1, 2, 3)
"""The ranks n of ``rank_logp_n``."""

SIGNALS = (
    *(
        Signal(
            f"rank_logp_{n}",
            "nats",
            f"Mean log-prob of the rank-{n} candidate: over the tokens of a response first, then over responses.",
            "estimate",
            "CaSP Eq. 2",
            ("candidates",),
        )
        for n in RANKS
    ),
    Signal(
        "sample_logp",
        "nats",
        "Mean log-prob of the sampled token: over a response first, then over responses.",
        "mean",
        "CaSP Eq. 2",
    ),
    Signal(
        "top1_rate",
        "share",
        "Share of tokens at which the sampled token is the most likely one.",
        "mean",
        "CaSP Eq. 5",
        ("candidates",),
    ),
    Signal(
        "expected_distinct",
        "tokens",
        "Different tokens to expect at a position in K draws, sum over candidates of 1 - (1-p)^K; K is the group's "
        "size, 8 where there are no groups. Over the measured candidates only, so a lower bound. Mean over tokens.",
        "estimate",
        "CaSP Prop. 3",
        ("candidates",),
        "up",
    ),
    Signal(
        "expected_distinct_bound",
        "tokens",
        "Its upper bound: with K x (mass of the candidates that were not measured) added.",
        "estimate",
        "CaSP Prop. 3",
        ("candidates",),
    ),
    Signal(
        "support95_mean",
        "tokens",
        "Candidates, most likely first, that hold 0.95 of the mass; mean over tokens, a token that needs more than the "
        "n measured ones counting as n + 1.",
        "estimate",
        "CaSP App. G",
        ("candidates",),
        "up",
    ),
    Signal(
        "support95_beyond",
        "share",
        "Share of tokens whose 0.95 of the mass needs more candidates than are measured.",
        "estimate",
        "CaSP App. G",
        ("candidates",),
    ),
    Signal(
        "self_certainty",
        "nats",
        "KL of the uniform distribution to the policy's, over the finite logits; mean over tokens.",
        "estimate",
        "SCOPE App. (RLIF)",
        ("candidates",),
    ),
)
