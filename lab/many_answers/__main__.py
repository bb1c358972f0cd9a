"""``python -m entrostat.lab.many_answers --steps 60 --seeds 3``: the same as ``entrostat lab many-answers``."""

import typer

from entrostat.lab.many_answers.experiment import run

if __name__ == "__main__":
    typer.run(run)
