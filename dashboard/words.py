"""Charts of the run page, in the order in which people look; titles, units and meanings from the vocabulary."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from entrostat.wire.declared.entropy import QUANTILES
from entrostat.wire.declared.text import CATEGORIES
from entrostat.wire.signals import BY_NAME, FINDINGS, PASS_AT, RANKS


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart.

    Args:
        key: in ids and addresses.
        title: over the chart.
        signals: what it shows; those a run does not have are left out.
        negated: of these, the ones drawn with their sign turned (``-d_entropy`` beside the covariance).
        band: (mean, spread) drawn as mean with a band of one spread on each side.
        first: the signal whose last value stands in the chart's head.
    """

    key: str
    title: str
    signals: tuple[str, ...]
    first: str
    negated: tuple[str, ...] = ()
    band: tuple[str, str] | None = None


PANELS = (
    Panel("reward", "Reward", ("reward_mean",), "reward_mean", band=("reward_mean", "reward_std")),
    Panel("pass", "pass@k", tuple(f"pass_at_{k}" for k in PASS_AT), "pass_at_1"),
    Panel("entropy", "Entropy", ("entropy_mean", "entropy_pos", "entropy_neg"), "entropy_mean"),
    Panel("collapse", "Collapse of forking tokens", ("d_collapse", "scope_mass_top5"), "d_collapse"),
    Panel(
        "candidates",
        "Rank-n log-probs",
        (*(f"rank_logp_{n}" for n in RANKS), "sample_logp"),
        "rank_logp_2",
    ),
    Panel(
        "covariance",
        "Covariance, and the fall of entropy",
        ("cov_mean", "cov_group", "d_entropy"),
        "cov_mean",
        negated=("d_entropy",),
    ),
    Panel(
        "cov_tops",
        "Covariance of the top tokens",
        ("cov_top_0_02pct", "cov_top_0_2pct", "cov_top_2pct", "cov_top_20pct"),
        "cov_top_2pct",
    ),
    Panel("ppl", "Perplexity of responses", ("ppl",), "ppl"),
    Panel("ppl_z", "ln PPL z-score, right against wrong", ("ln_ppl_z_pos", "ln_ppl_z_neg"), "ln_ppl_z_pos"),
    Panel(
        "groups",
        "Groups without a gradient",
        ("zero_variance_groups", "all_right_groups", "all_wrong_groups", "zero_advantage_rate"),
        "zero_variance_groups",
    ),
    Panel("top1", "Top-1 rate", ("top1_rate", "support95_beyond"), "top1_rate"),
    Panel("length", "Response length", ("length_mean", "length_max"), "length_mean"),
    Panel("truncated", "Truncated responses", ("truncated_rate",), "truncated_rate"),
    Panel("policy", "Clipping", ("clip_fraction_low", "clip_fraction_high"), "clip_fraction_high"),
    Panel("kl", "Approximate KL to the sampling policy", ("approx_kl",), "approx_kl"),
    Panel(
        "mismatch",
        "Rollout engine against trainer",
        ("rollout_kl", "rollout_kl_k3", "rollout_logp_gap"),
        "rollout_kl_k3",
    ),
    Panel(
        "mismatch_ratio",
        "Importance ratio, trainer to rollout engine",
        ("rollout_ratio_mean", "rollout_ratio_out_share", "rollout_prob_gap_max"),
        "rollout_ratio_mean",
    ),
    Panel(
        "rollout",
        "In the rollout engine: entropy, rank-n log-probs",
        ("rollout_entropy_mean", *(f"rollout_rank_logp_{n}" for n in RANKS)),
        "rollout_entropy_mean",
    ),
    Panel(
        "spread",
        "Entropy over tokens: quantiles, top 20 %",
        (*(f"entropy_{suffix}" for suffix in QUANTILES), "entropy_top20"),
        "entropy_p50",
    ),
    Panel(
        "support",
        "Candidates in play",
        ("expected_distinct", "expected_distinct_bound", "support95_mean"),
        "expected_distinct",
    ),
    Panel("certainty", "Self-certainty", ("self_certainty",), "self_certainty"),
    Panel("scope", "SCOPE score", ("scope_score",), "scope_score"),
    Panel("gradient", "Gradient of a token", ("token_grad_norm", "token_grad_norm_logits"), "token_grad_norm"),
    Panel("majority", "maj@k", tuple(f"maj_at_{k}" for k in PASS_AT if k > 1), "maj_at_8"),
    Panel("unique", "Different responses to a prompt", ("unique_completions",), "unique_completions"),
    Panel("sharpening", "Over-sharpening: Z' bound", ("z_bound",), "z_bound"),
    Panel(
        "quality",
        "Form of responses",
        ("format_violation_rate", "language_mixing_rate", "repetition_rate"),
        "format_violation_rate",
    ),
    Panel("categories", "Kinds of tokens, share", tuple(f"share_{c}" for c in CATEGORIES), "share_logical"),
    Panel("category_entropy", "Kinds of tokens, entropy", tuple(f"entropy_{c}" for c in CATEGORIES), "entropy_logical"),
    Panel("cost", "What the probe costs", ("probe_share",), "probe_share"),
)

RUN_PAGE_SIGNALS = tuple(dict.fromkeys(name for panel in PANELS for name in (*panel.signals, *(panel.band or ()))))


def absent_panels(names: Collection[str]) -> list[Panel]:
    """The panels of which a run with the signals ``names`` has none; none of them before the first signal."""
    return [panel for panel in PANELS if not set(panel.signals) & set(names)] if names else []


def label(name: str) -> str:
    """A signal's short name in legends: without underscores, the panel's own words kept."""
    return name.replace("trainer/", "").replace("_", " ")


def unit(name: str) -> str:
    """Its unit, or nothing for a plain number or a name of the user's."""
    signal = BY_NAME.get(name)
    return "" if signal is None or signal.unit == "1" else signal.unit


def meaning(panel: Panel) -> str:
    """The tooltip of a panel: one line a signal."""
    return "\n".join(f"{label(n)}: {BY_NAME[n].meaning} ({BY_NAME[n].source})" for n in panel.signals if n in BY_NAME)


def number(value: float | None) -> str:
    """A value in a table or a chart's head, four significant digits."""
    if value is None:
        return "–"
    return f"{value:.4g}"


def findings(analysis: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(title, statement, tooltip) of each statement about a run; where there is none, the server's reason."""
    said = {"stage": _stage, "entropy_law": _ceiling, "entropy_floor_forecast": _floor}
    titles = {"stage": "Stage", "entropy_law": "Ceiling", "entropy_floor_forecast": "Entropy floor"}
    return [
        (titles[f.name], analysis[f.name]["refused"] or said[f.name](analysis), f"{f.meaning} ({f.source})")
        for f in FINDINGS
    ]


def _stage(analysis: Mapping[str, Any]) -> str:
    stage = analysis["stage"]
    since = "" if stage["plateau_from"] is None else f" since step {stage['plateau_from']}"
    return f"{stage['stage']}{since}"


def _ceiling(analysis: Mapping[str, Any]) -> str:
    law = analysis["entropy_law"]
    interval = f"{number(law['ceiling_low'])} to {number(law['ceiling_high'])}"
    return f"{label(analysis['reward'])} {number(law['ceiling'])} at entropy 0 ({interval})"


def _floor(analysis: Mapping[str, Any]) -> str:
    forecast = analysis["entropy_floor_forecast"]
    interval = f"{forecast['step_low']} to {forecast['step_high']}"
    return f"{number(forecast['floor'])} nats at step {forecast['step']} ({interval}), {forecast['trend']} trend"
