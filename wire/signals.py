"""The vocabulary: every signal declared once. Storage views, docs, chart titles and Prometheus names are made from it.

A signal whose inputs are absent in a run is absent from its rows, never 0; the reason is an event of the run.
"""

from dataclasses import dataclass
from typing import Literal

Merge = Literal["mean", "estimate", "sum", "max", "std", "comoment", "last", "derived"]
Direction = Literal["up", "down", "none"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal, one definition.

    Args:
        name: as in SQL, charts and Prometheus.
        unit: ``nats``, ``share`` (0 to 1), ``tokens``, ``ms``, ``1`` for a plain number.
        meaning: one sentence for a tooltip or a column comment.
        merge: how parts of it add up (``wire/mergeable.py``); ``derived`` signals are made by the views.
        source: paper and equation, or ``ours``.
        needs: the inputs without which it is absent.
        better: the direction people hope for; ``none`` where there is none.
        panel: the chart of the run page that shows it.
    """

    name: str
    unit: str
    meaning: str
    merge: Merge
    source: str
    needs: tuple[str, ...] = ()
    better: Direction = "none"
    panel: str = "other"


def _unique(*signals: Signal) -> tuple[Signal, ...]:
    names = [s.name for s in signals]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ValueError(f"declared twice: {sorted(twice)}")
    return signals


COVARIANCE_TOPS = {"0_02pct": 0.0002, "0_2pct": 0.002, "2pct": 0.02, "20pct": 0.2}
"""Suffix of ``cov_top_*`` -> the share of tokens (Entropy Mechanism, Table 1)."""
RANKS = (1, 2, 3)
"""The ranks n of ``rank_logp_n``."""
PASS_AT = (1, 2, 4, 8, 16, 32, 64)
"""The k of ``pass_at_k``: reported up to the group's size."""

_ON_A = ("advantages",)
_ON_GROUPS = ("advantages", "groups")
_ON_REWARDS = ("rewards", "groups")
_ON_RATIO = ("old log-probs",)
_TOP_NOTE = "Over several ranks: the mean over each rank's own top share."

SIGNALS: tuple[Signal, ...] = _unique(
    Signal(
        "entropy_mean",
        "nats",
        "Mean entropy of the policy's next-token distribution, over response tokens.",
        "mean",
        "Exchange Eq. 3",
        panel="entropy",
    ),
    Signal(
        "entropy_pos",
        "nats",
        "The same over tokens of responses with a positive advantage.",
        "mean",
        "Exchange Sec. 3",
        _ON_A,
        panel="entropy",
    ),
    Signal(
        "entropy_neg",
        "nats",
        "The same over tokens of responses with a negative advantage.",
        "mean",
        "Exchange Sec. 3",
        _ON_A,
        panel="entropy",
    ),
    Signal(
        "d_entropy",
        "nats",
        "Change of the mean entropy from this step to the next.",
        "derived",
        "Entropy Mechanism Thm 1",
        panel="covariance",
    ),
    *(
        Signal(
            f"rank_logp_{n}",
            "nats",
            f"Mean log-prob of the rank-{n} candidate: over the tokens of a response first, then over responses.",
            "estimate",
            "CaSP Eq. 2",
            ("candidates",),
            panel="candidates",
        )
        for n in RANKS
    ),
    Signal(
        "sample_logp",
        "nats",
        "Mean log-prob of the sampled token: over a response first, then over responses.",
        "mean",
        "CaSP Eq. 2",
        panel="candidates",
    ),
    Signal(
        "top1_rate",
        "share",
        "Share of tokens at which the sampled token is the most likely one.",
        "mean",
        "CaSP Eq. 5",
        panel="candidates",
    ),
    Signal(
        "cov_mean",
        "nats",
        "Covariance of the tokens' log-prob and advantage, centred over all valid tokens.",
        "comoment",
        "Entropy Mechanism Eq. 8",
        _ON_A,
        panel="covariance",
    ),
    *(
        Signal(
            f"cov_top_{suffix}",
            "nats",
            f"Mean token covariance over the top {share:.2%} of tokens. {_TOP_NOTE}",
            "mean",
            "Entropy Mechanism Table 1",
            _ON_A,
            panel="covariance",
        )
        for suffix, share in COVARIANCE_TOPS.items()
    ),
    Signal(
        "cov_group",
        "nats",
        "Covariance over a prompt's responses of length-normalised log-prob and "
        "probability x advantage; mean over prompts.",
        "mean",
        "Entropy Mechanism Eq. 7",
        _ON_GROUPS,
        panel="covariance",
    ),
    Signal(
        "scope_score",
        "1",
        "Mean of p(1-p)max(A,0): how strongly an update redistributes a token's probability.",
        "mean",
        "SCOPE Eq. 11",
        _ON_A,
        panel="collapse",
    ),
    Signal(
        "scope_mass_top5",
        "share",
        f"Share of the total SCOPE score in the top 5 % of tokens. {_TOP_NOTE}",
        "mean",
        "ours",
        _ON_A,
        panel="collapse",
    ),
    Signal(
        "forking_rate",
        "share",
        "Share of tokens whose entropy is above the baseline's 80th percentile: the f of d_collapse.",
        "derived",
        "SCOPE Sec. 4.2",
        panel="collapse",
    ),
    Signal(
        "d_collapse",
        "share",
        "1 - f/f0, f the share of tokens whose entropy is above the baseline's 80th "
        "percentile: 0 as at the baseline, 1 no forking token left, negative more than before.",
        "derived",
        "SCOPE Sec. 4.2",
        better="down",
        panel="collapse",
    ),
    Signal(
        "ppl",
        "1",
        "Perplexity of a response, exp(-mean log-prob); mean over responses.",
        "mean",
        "Exchange Eq. 7",
        panel="perplexity",
    ),
    Signal(
        "ln_ppl_z_pos",
        "1",
        "Mean z-score of ln PPL within the prompt's group, over responses with A > 0.",
        "mean",
        "Exchange Eq. 7",
        _ON_GROUPS,
        panel="perplexity",
    ),
    Signal(
        "ln_ppl_z_neg",
        "1",
        "The same over responses with A < 0.",
        "mean",
        "Exchange Eq. 7",
        _ON_GROUPS,
        panel="perplexity",
    ),
    Signal("reward_mean", "1", "Mean reward over responses.", "mean", "all papers", ("rewards",), "up", "reward"),
    Signal(
        "reward_std",
        "1",
        "Standard deviation of the reward over responses (n - 1).",
        "std",
        "all papers",
        ("rewards",),
        panel="reward",
    ),
    Signal(
        "zero_variance_groups",
        "share",
        "Share of prompts whose responses all have the same reward: no gradient.",
        "mean",
        "all papers",
        _ON_REWARDS,
        "down",
        "groups",
    ),
    Signal(
        "all_right_groups",
        "share",
        "Share of prompts whose responses are all right.",
        "mean",
        "ours",
        _ON_REWARDS,
        panel="groups",
    ),
    Signal(
        "all_wrong_groups",
        "share",
        "Share of prompts whose responses are all wrong.",
        "mean",
        "ours",
        _ON_REWARDS,
        "down",
        "groups",
    ),
    *(
        Signal(
            f"pass_at_{k}",
            "share",
            f"Unbiased estimate that at least one of {k} responses to a prompt is right.",
            "mean",
            "Chen et al. 2021: 1 - C(G-c,k)/C(G,k)",
            _ON_REWARDS,
            "up",
            "reward",
        )
        for k in PASS_AT
    ),
    Signal("length_mean", "tokens", "Mean length of a response.", "mean", "SCOPE App. B", panel="length"),
    Signal("length_max", "tokens", "Longest response.", "max", "SCOPE App. B", panel="length"),
    Signal(
        "truncated_rate",
        "share",
        "Share of responses cut at the length limit, without an end token.",
        "mean",
        "SCOPE App. B",
        better="down",
        panel="length",
    ),
    Signal(
        "clip_fraction_low",
        "share",
        "Share of tokens with A < 0 and a ratio below 1 - eps_low, of all tokens.",
        "mean",
        "trainers",
        _ON_RATIO,
        panel="policy",
    ),
    Signal(
        "clip_fraction_high",
        "share",
        "Share of tokens with A > 0 and a ratio above 1 + eps_high, of all tokens.",
        "mean",
        "trainers",
        _ON_RATIO,
        panel="policy",
    ),
    Signal(
        "approx_kl",
        "nats",
        "KL of the old policy to the current one, estimated by r - 1 - ln r on sampled tokens.",
        "mean",
        "trainers (k3 estimator)",
        _ON_RATIO,
        panel="policy",
    ),
    Signal("ratio_max", "1", "Largest probability ratio of the step.", "max", "trainers", _ON_RATIO, panel="policy"),
    Signal("num_tokens", "tokens", "Response tokens in the step.", "sum", "ours", panel="cost"),
    Signal("num_responses", "1", "Responses in the step.", "sum", "ours", panel="cost"),
    Signal(
        "num_invalid_tokens",
        "tokens",
        "Tokens whose statistics were NaN or infinite; left out of every mean.",
        "sum",
        "ours",
        better="down",
        panel="cost",
    ),
    Signal("wall_time_s", "s", "When the step ended, seconds since 1970.", "max", "ours", panel="cost"),
    Signal("step_s", "s", "Wall time of the step on its slowest rank.", "max", "ours", better="down", panel="cost"),
    Signal(
        "probe_ms",
        "ms",
        "The probe's own time on the training thread, on its slowest rank.",
        "max",
        "ours",
        better="down",
        panel="cost",
    ),
    Signal(
        "probe_share",
        "share",
        "The probe's share of the step's wall time; mean over ranks.",
        "mean",
        "ours",
        better="down",
        panel="cost",
    ),
)

BY_NAME = {s.name: s for s in SIGNALS}

HISTOGRAMS = {
    "entropy": ("nats", "Entropy of each response token."),
    "cov_token": ("nats", "Covariance share of each token, (logp - mean)(A - mean), centred over the rank's tokens."),
    "scope_score": ("1", "p(1-p)max(A,0) of each token."),
}
"""Name -> (unit, meaning) of the histograms, binned as ``wire/bins.py`` says."""

USER_PREFIX = "trainer/"
"""What the trainer logs itself arrives under this prefix: ``trainer/loss``, ``trainer/learning_rate``."""
