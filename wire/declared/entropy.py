"""Entropy of the policy, and its change."""

from entrostat.wire.declared.signal import Signal

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
"""Suffix of ``entropy_*`` -> the quantile."""
TOP_SHARE = 0.2
"""Of ``entropy_top20``: the tokens called forking tokens."""
NUM_POSITIONS = 20
"""Bins of relative position."""

_BIN = "Read from the histogram of all ranks: off by less than its bin is wide, 4.4 %."

SIGNALS = (
    Signal(
        "entropy_mean",
        "nats",
        "Mean entropy of the policy's next-token distribution, over response tokens.",
        "mean",
        "Exchange Eq. 3",
    ),
    Signal(
        "entropy_pos",
        "nats",
        "The same over tokens of responses with a positive advantage.",
        "mean",
        "Exchange Sec. 3",
        ("advantages",),
    ),
    Signal(
        "entropy_neg",
        "nats",
        "The same over tokens of responses with a negative advantage.",
        "mean",
        "Exchange Sec. 3",
        ("advantages",),
    ),
    *(
        Signal(
            f"entropy_{suffix}",
            "nats",
            f"{share:.0%} of the tokens have an entropy below this. {_BIN}",
            "derived",
            "ours",
        )
        for suffix, share in QUANTILES.items()
    ),
    Signal(
        "entropy_top20",
        "nats",
        "Mean entropy of the 20 % of tokens with the highest, from the histogram of all ranks: exact but for the bin "
        "that the 20 % end in, which counts by its mean.",
        "derived",
        "SCOPE Sec. 4.2",
    ),
    Signal(
        "d_entropy",
        "nats",
        "Change of the mean entropy from this step to the next.",
        "derived",
        "Entropy Mechanism Thm 1",
    ),
)

_CURVE = "by relative position t / |y| in the response, in 20 bins"

PROFILES = (
    Signal(
        "entropy_by_position",
        "nats",
        f"Mean entropy {_CURVE}.",
        "mean",
        "Exchange Fig. 6",
        shape="positions",
    ),
    *(
        Signal(
            f"entropy_by_position_{suffix}",
            "nats",
            f"Mean entropy {_CURVE}, of responses with a {word} advantage.",
            "mean",
            "Exchange Fig. 6",
            ("advantages",),
            shape="positions",
        )
        for suffix, word in (("pos", "positive"), ("neg", "negative"))
    ),
)
