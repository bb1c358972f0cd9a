"""The experiment as a whole: every method at every step size, tables, a picture."""

import os
from pathlib import Path
from typing import Annotated

import typer


def run(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Updates.")] = 500,
    group_size: Annotated[int, typer.Option(min=2, help="Paths a step.")] = 64,
    lr: Annotated[
        list[float] | None,
        typer.Option(help="Step size; several times. Else 0.1, 0.3, 1, 3, 10, 30.", show_default=False),
    ] = None,
    end: Annotated[bool, typer.Option(help="A path ends with a certain token, so that CaSP sees every choice.")] = True,
    json: Annotated[
        bool, typer.Option("--json", help="Every outcome by seed as JSON, in place of the tables.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw accuracy against modes into this HTML file.", show_default=False)
    ] = None,
) -> None:
    """CaSP's tree: how many of six right paths GRPO, an entropy bonus and CaSP keep, and at what accuracy."""
    # Before torch is imported: on small models threads only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from json import dumps

    from rich.console import Console

    from entrostat.lab import picture as pictures
    from entrostat.lab.tree import report
    from entrostat.lab.tree.methods import methods
    from entrostat.lab.tree.outcome import Outcome, outcomes
    from entrostat.lab.tree.train import Plan, train, uniforms

    if picture:
        pictures.need_plotly()
    plan = Plan(tuple(sorted(lr)) if lr else (0.1, 0.3, 1.0, 3.0, 10.0, 30.0), seeds, steps, group_size, end)
    uniform = uniforms(plan)
    found: list[Outcome] = []
    for family, active in methods():
        found += outcomes(family, active, plan.lrs, train(plan, active, uniform))
    if picture:
        pictures.write([report.figure(found), report.figure(found, 0.95), report.shares(found)], picture)
    if json:
        print(dumps([o.to_dict() for o in found]))
        return
    console = Console(highlight=False, markup=False, width=200)
    console.print(report.curves(found))
    console.print(report.summary(found))
    for line in report.claims(found):
        console.print(line)
