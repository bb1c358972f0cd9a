"""``push``: send what waited on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from entrostat.cli.options import DEFAULT_URL, Token, Url, client

if TYPE_CHECKING:
    from entrostat.wire.recovery import Restore


def _restore_where_torch_is() -> "Restore | None":
    try:
        from entrostat.probe.stored_step import restore
    except ImportError:
        return None
    return restore


def push(
    directory: Annotated[
        Path | None, typer.Argument(help="Where batches wait: ENTROSTAT_DIR, else the user's data folder.")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Send batches that were spooled while no server answered. Streams of a running trainer are left to it."""
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from entrostat.trainer_adapters.session import from_environment, spool_root
    from entrostat.wire.client import push as push_all
    from entrostat.wire.spool import pending_streams

    root = directory or spool_root(from_environment())
    waiting = sum(stream.num_bytes for stream in pending_streams(root) if not stream.is_live)
    if not root.exists():
        print(f"nothing waits: there is no {root}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("sending", total=waiting)
        report = push_all(
            root,
            client(url, token),
            lambda done: progress.update(task, completed=done.bytes_sent),
            restore=_restore_where_torch_is(),
        )
    print(f"sent {report.num_sent} batches ({report.bytes_sent} bytes) from {root}")
    if report.num_live:
        print(f"left {report.num_live} streams to the running trainers that hold them")
    if report.num_rejected:
        print(f"{report.num_rejected} batches were refused and kept aside under rejected/, with the reason")
    for problem in report.problems:
        print(f"entrostat: {problem}", file=sys.stderr)
    if report.problems:
        raise typer.Exit(1)
