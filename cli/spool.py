"""``push``: send what waited on disk."""

from pathlib import Path
from typing import Annotated

import typer

from entrostat.cli.options import DEFAULT_URL, Token, Url, client


def push(
    directory: Annotated[
        Path | None, typer.Argument(help="Where batches wait: ENTROSTAT_DIR, else the user's data folder.")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Send batches that were spooled while no server answered. Streams of a running trainer are left to it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from entrostat.trainer_adapters.session import from_environment, spool_root
    from entrostat.wire.client import push as push_all

    root = directory or spool_root(from_environment())
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()) as progress:
        task = progress.add_task(f"sending {root}", total=None)
        report = push_all(
            root, client(url, token), lambda done, total: progress.update(task, completed=done, total=total)
        )
    print(report)
