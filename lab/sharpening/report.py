"""The tables and pictures that ``entrostat lab sharpening`` makes."""

from collections.abc import Sequence
from statistics import mean, median
from typing import TYPE_CHECKING

from rich.table import Table

from entrostat.lab.picture import COLOURS, layout
from entrostat.lab.sharpening.advantages import ESTIMATORS
from entrostat.lab.sharpening.claims import Results, Share, claims
from entrostat.lab.sharpening.labels import CAT, PERSIAN, SIAMESE_INPUTS
from entrostat.lab.sharpening.outcome import Outcome
from entrostat.lab.sharpening.toy import Calibration, Course, Optimiser, Setting

if TYPE_CHECKING:
    import plotly.graph_objects as go

EVERY_NTH = 5
"""Steps drawn."""

Drawn = list[tuple[Setting, Course]]


def by_lr(outcomes: Sequence[Outcome]) -> dict[float, list[Outcome]]:
    """The outcomes of each step size, in the order in which they were run."""
    grouped: dict[float, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.setting.lr, []).append(outcome)
    return grouped


def ends(lr: float, outcomes: Sequence[Outcome]) -> Table:
    """A row an estimator, optimiser and calibration; a column a group size."""
    sizes = sorted({o.setting.group_size for o in outcomes})
    title = (
        f"Step size {lr:g}: seeds that ended on Cat / on Persian / with both; median step of collapse; "
        "mean entropy (nats); Siamese accuracy at high, mid, low similarity"
    )
    table = Table("advantage", "optimiser", "calibration", *(f"G = {g}" for g in sizes), title=title, box=None)
    rows: dict[tuple[str, str, str], list[str]] = {}
    for o in sorted(outcomes, key=lambda o: (list(ESTIMATORS).index(o.estimator), o.setting.group_size)):
        key = (o.estimator, o.setting.optimiser.value, o.setting.calibration.value)
        rows.setdefault(key, []).append(cell(o))
    for key, cells in rows.items():
        table.add_row(*key, *cells)
    return table


def cell(o: Outcome) -> str:
    """``5/4/1 s62 H0.11 .20 .22 .23``."""
    when = [step for step in o.collapse_step if step is not None]
    siamese = " ".join(f"{mean(o.siamese[kind]):.2f}".removeprefix("0") for kind in SIAMESE_INPUTS)
    step = f"s{median(when):.0f}" if when else "-"
    return f"{o.num_cat}/{o.num_persian}/{o.num_both} {step} H{mean(o.entropy):.2f} {siamese}"


def shares(outcomes: Sequence[Outcome]) -> Table:
    """A row a claim, a column a step size."""
    found = {lr: claims(Results(part)) for lr, part in by_lr(outcomes).items()}
    table = Table("claim", title="The paper's claims: share of runs, or of pairs of runs with one seed", box=None)
    for lr in found:
        table.add_column(f"step size {lr:g}", justify="right")
    for text in next(iter(found.values())):
        table.add_row(text, *(percent(part[text]) for part in found.values()))
    return table


def percent(share: Share) -> str:
    """``97 % (39/40)``; a dash where there was nothing to count."""
    return f"{share.held / share.total:.0%} ({share.held}/{share.total})" if share.total else "-"


def thinned(setting: Setting, course: Course) -> tuple[Setting, Course]:
    """What is kept of a course to be drawn."""
    return setting, Course(course.probs[::EVERY_NTH].float(), course.siamese[::EVERY_NTH].float())


def figures(drawn: Drawn, estimators: Sequence[str]) -> list["go.Figure"]:
    """For each step size and optimiser: Cat's share of the two, a panel a calibration and estimator, a line a seed."""
    made = []
    for lr in dict.fromkeys(s.lr for s, _ in drawn):
        for kind in Optimiser:
            part = [(s, c) for s, c in drawn if s.lr == lr and s.optimiser is kind]
            if part:
                made.append(_figure(f"Step size {lr:g}, {kind}", part, estimators))
        made.append(_siamese(lr, [(s, c) for s, c in drawn if s.lr == lr], estimators))
    return made


def _figure(title: str, part: Drawn, estimators: Sequence[str]) -> "go.Figure":
    from plotly.subplots import make_subplots

    rows = list(Calibration)
    figure = make_subplots(
        len(rows),
        len(estimators),
        shared_xaxes=True,
        shared_yaxes=True,
        row_titles=[str(r) for r in rows],
        column_titles=list(estimators),
    )
    for setting, course in part:
        share = course.probs[..., CAT] / (course.probs[..., CAT] + course.probs[..., PERSIAN])
        sizes = sorted({s.group_size for s, _ in part})
        for k in range(len(estimators)):
            # One trace for all seeds, with gaps between them: hundreds of traces make a page slow.
            x = [*range(0, EVERY_NTH * share.shape[0], EVERY_NTH), None] * share.shape[2]
            y = [value for seed in share[:, k].T.tolist() for value in (*(round(v, 3) for v in seed), None)]
            figure.add_scatter(
                x=x,
                y=y,
                name=f"G = {setting.group_size}",
                legendgroup=str(setting.group_size),
                showlegend=k == 0 and setting.calibration is Calibration.none,
                line={"width": 1, "color": COLOURS[sizes.index(setting.group_size)]},
                opacity=0.6,
                row=rows.index(setting.calibration) + 1,
                col=k + 1,
            )
    figure.update_yaxes(range=[0, 1])
    figure.update_layout(layout(f"{title}: pi(Cat) / (pi(Cat) + pi(Persian)), input Persian", height=640))
    return figure


def _siamese(lr: float, part: Drawn, estimators: Sequence[str]) -> "go.Figure":
    from plotly.subplots import make_subplots

    part = [(s, c) for s, c in part if s.optimiser is Optimiser.sgd and s.calibration is Calibration.none]
    figure = make_subplots(1, len(estimators), shared_yaxes=True, column_titles=list(estimators))
    for j, (setting, course) in enumerate(part):
        for k in range(len(estimators)):
            for i, kind in enumerate(SIAMESE_INPUTS):
                values = course.siamese[:, k, :, i].mean(1).tolist()
                figure.add_scatter(
                    x=list(range(0, EVERY_NTH * len(values), EVERY_NTH)),
                    y=[round(v, 4) for v in values],
                    name=f"{kind}, G = {setting.group_size}",
                    legendgroup=f"{kind}{setting.group_size}",
                    showlegend=k == 0,
                    line={"color": COLOURS[j % len(COLOURS)], "dash": ("solid", "dash", "dot")[i], "width": 1.5},
                    row=1,
                    col=k + 1,
                )
    figure.update_layout(layout(f"Step size {lr:g}, SGD: pi(Siamese | Siamese), mean over seeds", height=360))
    return figure
