"""The tables and the picture that ``entrostat lab tree`` makes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from entrostat.lab.picture import COLOURS, layout
from entrostat.lab.tree import mdp
from entrostat.lab.tree.outcome import PAPER, Outcome, best, frontier, nearest

if TYPE_CHECKING:
    import plotly.graph_objects as go

ACCURATE = 0.99


def curves(found: Sequence[Outcome]) -> Table:
    """A row a method, a column a step size: mean accuracy and mean modes."""
    lrs = sorted({o.lr for o in found})
    title = "Mean accuracy and mean number of modes over seeds, by step size"
    table = Table("method", *(f"{lr:g}" for lr in lrs), title=title, box=None)
    for name in dict.fromkeys(o.name for o in found):
        row = {o.lr: o for o in found if o.name == name}
        table.add_row(name, *(f"{row[lr].mean_accuracy:.3f} {row[lr].mean_modes:.1f}" for lr in lrs))
    return table


def summary(found: Sequence[Outcome]) -> Table:
    """A row a family: the most modes at accuracy 0.99, and how near the paper's point it comes."""
    table = Table("family", f"most modes at accuracy {ACCURATE}", "modes by seed", "paper", "nearest to it", box=None)
    table.title = "What each family reaches, over step sizes and parameters"
    for family, point in PAPER.items():
        part = [o for o in found if o.family == family]
        most, near = best(part, ACCURATE), nearest(part, point)
        table.add_row(
            family,
            described(most) if most else "-",
            " ".join(str(m) for m in most.modes) if most else "",
            f"{point[0]} modes, {point[1]:.2f}",
            described(near),
        )
    return table


def described(o: Outcome) -> str:
    """``5.0 modes, 0.999 (CaSP N=3 ..., step size 10)``."""
    return f"{o.mean_modes:.1f} modes, {o.mean_accuracy:.3f} ({o.name}, step size {o.lr:g})"


def claims(found: Sequence[Outcome]) -> list[str]:
    """The two things that should show, in words, with the shares of seeds."""
    grpo = [o for o in found if o.family == "GRPO" and o.mean_accuracy >= ACCURATE]
    counts = [m for o in grpo for m in o.modes]
    lines = [
        f"GRPO at accuracy {ACCURATE}: 1 or 2 modes in {sum(m <= 2 for m in counts)} of {len(counts)} runs "
        f"(step sizes {', '.join(f'{o.lr:g}' for o in grpo)})"
    ]
    base = best(grpo, ACCURATE)
    for family in ("CaSP", "GRPO + entropy"):
        other = best([o for o in found if o.family == family], ACCURATE)
        if base and other:
            twice = sum(b >= 2 * a for a, b in zip(base.modes, other.modes, strict=True))
            cells = [o for o in found if o.family == family]
            num_good = sum(o.mean_accuracy >= ACCURATE and o.mean_modes >= 2 * base.mean_modes for o in cells)
            lines.append(
                f"{family} at accuracy {ACCURATE}: {other.mean_modes:.1f} modes to GRPO's {base.mean_modes:.1f}, each "
                f"at its best; at least twice as many in {twice} of {len(base.modes)} seeds; "
                f"so on average in {num_good} of its {len(cells)} settings"
            )
    return lines


def figure(found: Sequence[Outcome], from_accuracy: float = 0.0) -> "go.Figure":
    """Accuracy against modes: a point a method and step size, each family's frontier as a line, the paper's stars.

    Args:
        found: all outcomes.
        from_accuracy: where the axis begins; most of what matters is beyond 0.95.
    """
    import plotly.graph_objects as go

    made = go.Figure()
    for i, (family, (modes, accuracy)) in enumerate(PAPER.items()):
        part = [o for o in found if o.family == family]
        common = {"legendgroup": family, "marker": {"color": COLOURS[i]}}
        made.add_scatter(
            x=[o.mean_accuracy for o in part],
            y=[o.mean_modes for o in part],
            text=[f"{o.name}, step size {o.lr:g}" for o in part],
            mode="markers",
            opacity=0.5,
            name=family,
            **common,
        )
        edge = frontier(part)
        made.add_scatter(
            x=[o.mean_accuracy for o in edge],
            y=[o.mean_modes for o in edge],
            mode="lines",
            line={"color": COLOURS[i]},
            name=f"{family}: frontier",
            legendgroup=family,
        )
        star = common | {"marker": {"color": COLOURS[i], "symbol": "star", "size": 16}}
        made.add_scatter(x=[accuracy], y=[modes], mode="markers", name=f"{family}: paper", **star)
    made.update_layout(
        layout(
            "Rewarded paths kept (at least 0.5 % each) against accuracy, means over seeds",
            height=560,
            xaxis={"title": "accuracy", "range": [from_accuracy, 1 + (1 - from_accuracy) / 40]},
            yaxis={"title": "modes"},
        )
    )
    return made


def shares(found: Sequence[Outcome]) -> "go.Figure":
    """The probability of each rewarded path, mean over seeds, where each family has the most modes at accuracy 0.99."""
    import plotly.graph_objects as go

    made = go.Figure()
    for i, family in enumerate(PAPER):
        o = best([o for o in found if o.family == family], ACCURATE)
        if o:
            means = [sum(column) / len(column) for column in zip(*o.probs, strict=True)]
            made.add_bar(x=list(mdp.REWARDED), y=means, name=f"{o.name}, step size {o.lr:g}", marker_color=COLOURS[i])
    made.update_layout(
        layout(f"Probability of each rewarded path, mean over seeds, at accuracy {ACCURATE}", height=360)
    )
    return made
