"""What the rollout engine's own process measures of the tokens it samples (``trainer_adapters/vllm``).

Their tokens are those sampled in the step, whether the trainer kept them or not; their distribution is the engine's.
"""

from entrostat.wire.declared.signal import Need, Signal

RANKS = (1, 2, 3)
"""The ranks n of ``rollout_rank_logp_n``."""

_NEEDS: tuple[Need, ...] = ("rollout probe",)
_HOW = "of softmax(logits / T) in the rollout engine, before top-k and top-p"

SIGNALS = (
    Signal(
        "rollout_entropy_mean",
        "nats",
        f"Mean entropy {_HOW}, over sampled tokens.",
        "mean",
        "Exchange Eq. 3, in the engine",
        _NEEDS,
    ),
    *(
        Signal(
            f"rollout_rank_logp_{n}",
            "nats",
            f"Mean log-prob of the rank-{n} candidate {_HOW}; over tokens, where rank_logp_{n} is over responses.",
            "mean",
            "CaSP Eq. 2, in the engine",
            _NEEDS,
        )
        for n in RANKS
    ),
    Signal("rollout_tokens", "tokens", "Tokens measured in the rollout engine.", "sum", "ours", _NEEDS),
)
