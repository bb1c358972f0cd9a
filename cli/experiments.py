"""``lab``: the experiments, each a command that prints a table."""

import os
from pathlib import Path
from typing import Annotated

import typer

from entrostat.lab.many_answers import experiment as many_answers
from entrostat.lab.sharpening import experiment as sharpening
from entrostat.lab.tree import experiment as tree

lab = typer.Typer(help="Run an experiment: what the papers claim, held against this code.", no_args_is_help=True)
lab.command("many-answers")(many_answers.run)
lab.command("sharpening")(sharpening.run)
lab.command("tree")(tree.run)


@lab.command("theory")
def theory(
    seed: Annotated[int, typer.Option(min=0, help="Of the random cases.")] = 0,
    cases: Annotated[int, typer.Option(min=1, help="Random cases of each identity.")] = 200,
) -> None:
    """The papers' identities with their largest error; exit status 1 if one does not hold."""
    from entrostat.lab.theory.report import run

    if not run(seed, cases):
        raise typer.Exit(1)


@lab.command("closed-loop")
def closed_loop(
    seeds: Annotated[int, typer.Option(min=1, help="How many, from seed 0.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="GRPO steps.")] = 150,
    arms: Annotated[str | None, typer.Option(help="Names, separated by commas; all by default.")] = None,
    data: Annotated[Path, typer.Option("--data", help="Folder of the database.")] = Path("entrostat-data"),
    picture: Annotated[Path | None, typer.Option(help="An HTML file; needs plotly.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON line a run, in the place of tables.")] = False,
) -> None:
    """GRPO alone, constant bonuses and other methods, and the thermostat, over seeds, through the real server."""
    # Before torch is imported: on small models threads only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from entrostat.cli.closed_loop import run

    run(seeds, steps, arms, data, picture, as_json)
