"""Charts of the run page, in the order in which people look; titles, units and meanings from the vocabulary."""

from dataclasses import dataclass

from entrostat.wire.signals import BY_NAME, PASS_AT, RANKS


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
        ("zero_variance_groups", "all_right_groups", "all_wrong_groups"),
        "zero_variance_groups",
    ),
    Panel("top1", "Top-1 rate", ("top1_rate",), "top1_rate"),
    Panel("length", "Response length", ("length_mean", "length_max"), "length_mean"),
    Panel("truncated", "Truncated responses", ("truncated_rate",), "truncated_rate"),
    Panel("policy", "Clipping", ("clip_fraction_low", "clip_fraction_high"), "clip_fraction_high"),
    Panel("kl", "Approximate KL to the sampling policy", ("approx_kl",), "approx_kl"),
    Panel("cost", "What the probe costs", ("probe_share",), "probe_share"),
)

RUN_PAGE_SIGNALS = tuple(dict.fromkeys(name for panel in PANELS for name in (*panel.signals, *(panel.band or ()))))


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
