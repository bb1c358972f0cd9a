"""The closed loop over seeds: GRPO alone, constant entropy bonuses, other methods, and the thermostat."""

import secrets
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from entrostat.lab.many_answers import arms as all_arms
from entrostat.lab.many_answers.arms import Arm
from entrostat.lab.many_answers.evaluate import Evaluation

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from entrostat.wire.client import Client

COEFFICIENTS = (0.01, 0.02, 0.05, 0.1)
CURVE = tuple(all_arms.constant("entropy_bonus", c=c) for c in COEFFICIENTS)
"""What there was before: the same bonus all the time. The curve to be above."""
OTHERS = (
    all_arms.constant("scope", lam=0.05),
    all_arms.constant("scope", lam=0.1),
    all_arms.constant("casp", a=0.05),
    all_arms.constant("iac", alpha=1.0),
)
ARMS = (all_arms.PLAIN, *CURVE, *OTHERS, all_arms.THERMOSTAT)


@dataclass(frozen=True, slots=True)
class Row:
    """One run of one arm: fresh samples of every prompt, after training."""

    arm: str
    seed: int
    run_id: str
    found: Evaluation


def run(
    client: "Client",
    *,
    seeds: Sequence[int],
    steps: int,
    arms: Sequence[Arm],
    directory: Path,
    on_row: Callable[[Row], None],
) -> list[Row]:
    """Teach once a seed, then train a copy under each arm.

    Args:
        client: of a running server.
        seeds: of teaching, prompts and sampling.
        steps: of GRPO.
        arms: in which order.
        directory: of the spool.
        on_row: called when a run has ended; the row of the taught model itself comes first, as ``taught``.
    """
    from entrostat.lab.many_answers import evaluate, task, teach

    rows = []

    def add(row: Row) -> None:
        rows.append(row)
        on_row(row)

    for seed in seeds:
        tokenizer = task.make_tokenizer()
        taught = teach.make_model(tokenizer, seed)
        teach.teach(taught, tokenizer, seed=seed, steps=all_arms.TEACH_STEPS)
        add(Row("taught", seed, "", evaluate.evaluate(taught, tokenizer, seed=seed)))
        for arm in arms:
            name = f"{arm.name}-{seed}-{secrets.token_hex(3)}"
            with tempfile.TemporaryDirectory() as scratch:
                result = all_arms.run_arm(
                    arm,
                    client,
                    taught,
                    tokenizer,
                    run=name,
                    steps=steps,
                    seed=seed,
                    directory=directory,
                    scratch=scratch,
                    evaluate_every=0,
                    **all_arms.SETTINGS,
                )
            add(Row(arm.name, seed, result.run_id, result.after))
    return rows


@dataclass(frozen=True, slots=True)
class Mean:
    """An arm over its seeds: mean and standard error of pass@1, pass@8, distinct right answers and entropy."""

    arm: str
    num_seeds: int
    pass1: tuple[float, float]
    pass8: tuple[float, float]
    distinct: tuple[float, float]
    entropy: tuple[float, float]


def means(rows: Sequence[Row]) -> list[Mean]:
    """Each arm over its seeds, in the order in which they came."""
    found = []
    for arm in dict.fromkeys(row.arm for row in rows):
        own = [row.found for row in rows if row.arm == arm]
        found.append(
            Mean(
                arm,
                len(own),
                _mean([e.pass1 for e in own]),
                _mean([e.pass_at[8] for e in own]),
                _mean([e.distinct_right for e in own]),
                _mean([e.entropy for e in own]),
            )
        )
    return found


def _mean(values: Sequence[float]) -> tuple[float, float]:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return statistics.fmean(values), error


def curve_at(pass1: float, points: Sequence[tuple[float, float]]) -> float | None:
    """Distinct right answers that a curve of (pass@1, distinct) has at a pass@1, between its points; None beyond them.

    Example:
        >>> curve_at(0.5, [(0.4, 6.0), (0.6, 2.0)])
        4.0
    """
    ordered = sorted(points)
    for (x0, y0), (x1, y1) in pairwise(ordered):
        if x0 <= pass1 <= x1:
            return y0 if x1 == x0 else round(y0 + (y1 - y0) * (pass1 - x0) / (x1 - x0), 12)
    return None


def picture(rows: Sequence[Row]) -> "go.Figure":
    """pass@1 against distinct right answers: every run faint, every arm's mean, the bonus's curve through its means."""
    import plotly.graph_objects as go

    from entrostat.lab.picture import COLOURS, layout

    figure = go.Figure()
    averages = {m.arm: m for m in means(rows)}
    on_curve = [all_arms.PLAIN.name, *(arm.name for arm in CURVE)]
    line = sorted((averages[a].pass1[0], averages[a].distinct[0]) for a in on_curve if a in averages)
    figure.add_scatter(
        x=[p for p, _ in line], y=[d for _, d in line], mode="lines", name="constant entropy bonus",
        line={"color": "#999999", "dash": "dot"},
    )  # fmt: skip
    for i, (arm, mean) in enumerate(averages.items()):
        colour = COLOURS[i % len(COLOURS)]
        own = [row.found for row in rows if row.arm == arm]
        figure.add_scatter(
            x=[e.pass1 for e in own], y=[e.distinct_right for e in own], mode="markers", opacity=0.35,
            showlegend=False, marker={"color": colour},
            hovertext=[f"{arm}, seed {row.seed}" for row in rows if row.arm == arm],
        )  # fmt: skip
        figure.add_scatter(
            x=[mean.pass1[0]], y=[mean.distinct[0]], mode="markers", name=arm, marker={"color": colour, "size": 13}
        )
    return figure.update_layout(
        layout("Right, and in how many ways", xaxis_title="pass@1", yaxis_title="distinct right answers of 32")
    )
