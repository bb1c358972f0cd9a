"""``runs export``, ``runs import``, ``runs delete``: a run out of a server as files, in again, and away."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entrostat.cli.options import DEFAULT_URL, Token, Url

if TYPE_CHECKING:
    from entrostat.wire.archive import Manifest
    from entrostat.wire.transfer import Progress, TransferClient


def add_to(runs: typer.Typer) -> None:
    """Make the commands part of ``entrostat runs``."""
    runs.command("export")(export)
    runs.command("import")(import_run)
    runs.command("delete")(delete)


def export(
    run: str,
    to: Annotated[Path, typer.Option("--to", help="A new folder, or a new file that ends in .tar.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Write a run to Parquet files, all of it, of one moment (docs/export.md)."""
    _exported(_client(url, token), run, to)


def import_run(
    path: Annotated[Path, typer.Argument(help="What `runs export` wrote: a folder or a .tar.")],
    name: Annotated[
        str | None, typer.Option("--as", help="Its name here.", show_default="its own; name-2 where that is taken")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Take an exported run into a server: all of it, or nothing. Needs an admin token where there are tokens."""
    with _progress(f"sending {path}") as on_progress:
        taken = _client(url, token).import_run(path, name, on_progress)
    print(f"imported {taken['run']}: {sum(taken['rows'].values()):,} rows of {taken['streams']} streams")


def delete(
    run: str,
    url: Url = DEFAULT_URL,
    token: Token = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    export_to: Annotated[
        Path | None, typer.Option("--export", help="First write the run there, as `runs export` does.")
    ] = None,
) -> None:
    """Delete a run and all its rows. There is no way back, but an export."""
    server = _client(url, token)
    print(_what_goes(server, run))
    if export_to is not None:
        _exported(server, run, export_to)
    elif not yes:
        print("--export PATH keeps a copy, which `runs import` brings back")
    if not yes:
        typer.confirm(f"delete {run} for good?", abort=True)
    server.send("DELETE", f"/v1/runs/{run}")
    print(f"deleted {run}")


def _exported(server: "TransferClient", run: str, to: Path) -> "Manifest":
    with _progress(f"exporting {run}") as on_progress:
        manifest = server.export_run(run, to, on_progress)
    num_bytes = sum(entry.bytes for entry in manifest.files)
    print(f"exported {run} to {to}: {sum(entry.rows for entry in manifest.files):,} rows, {num_bytes:,} bytes")
    return manifest


def _what_goes(server: "TransferClient", run: str) -> str:
    said: dict[str, Any] = server.run(run)
    batches = server.sql(
        f"select count(*) as n, coalesce(sum(num_rows), 0)::bigint as r from batch where run = '{run}'"
    )
    num_batches, num_rows = (column[0].as_py() for column in batches[0].columns)
    steps = "no steps yet" if said["last_step"] is None else f"up to step {said['last_step']}"
    live = "; it is live: its trainer goes on, as a new run" if said["status"] == "live" else ""
    return (
        f"{run}: begun {said['created']} on {said['host'] or 'an unnamed host'}, {steps}, {len(said['streams'])} "
        f"streams, {num_rows:,} rows in {num_batches:,} batches, its events and what was switched on{live}"
    )


@contextmanager
def _progress(what: str) -> Iterator["Progress"]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total or None)


def _client(url: str, token: str | None) -> "TransferClient":
    from entrostat.wire.transfer import TransferClient

    return TransferClient(url, token)
