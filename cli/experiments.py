"""``lab``: the experiments, each a command that prints a table."""

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
