"""The experiment as a whole: every setting at every step size, tables, a picture."""

import os
from pathlib import Path
from typing import Annotated

import typer


def run(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Updates.")] = 500,
    lr: Annotated[
        list[float] | None,
        typer.Option(
            help="Step size; give it several times. The paper names none: 0.1, 0.5 and 2.", show_default=False
        ),
    ] = None,
    group_size: Annotated[
        list[int] | None,
        typer.Option(min=2, max=32, help="G; several times. Else 4, 8, 16, 32.", show_default=False),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Every outcome by seed as JSON, in place of the tables.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Also write the courses to this HTML file.", show_default=False)
    ] = None,
) -> None:
    """Over-sharpening's softmax: which right label is left, how soon, and what IAC and DLC do about it."""
    # Before torch is imported: on small models threads only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import itertools
    from json import dumps

    from rich.console import Console

    from entrostat.lab import picture as pictures
    from entrostat.lab.sharpening import report, toy
    from entrostat.lab.sharpening.advantages import ESTIMATORS
    from entrostat.lab.sharpening.outcome import outcomes

    if picture:
        pictures.need_plotly()
    uniform = toy.uniforms(range(seeds), steps)
    found, drawn = [], []
    for step_size, optimiser, calibration, size in itertools.product(
        lr or (0.1, 0.5, 2.0), toy.Optimiser, toy.Calibration, group_size or (4, 8, 16, 32)
    ):
        setting = toy.Setting(step_size, optimiser, calibration, size, steps)
        course = toy.train(setting, uniform)
        found += outcomes(setting, course, tuple(ESTIMATORS))
        if picture:
            drawn.append(report.thinned(setting, course))
    if picture:
        pictures.write(report.figures(drawn, tuple(ESTIMATORS)), picture)
    if json:
        print(dumps([o.to_dict() for o in found]))
        return
    console = Console(highlight=False, markup=False, width=200)
    for step_size, part in report.by_lr(found).items():
        console.print(report.ends(step_size, part))
    console.print(report.shares(found))
