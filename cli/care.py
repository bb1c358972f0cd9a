"""``backup``, ``restore``, ``check``: looking after the database."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entrostat.cli.options import DEFAULT_URL, Token, Url, client
from entrostat.cli.serving import Data

if TYPE_CHECKING:
    from entrostat.wire.client import Client

_PATIENCE_S = 3600.0
"""A database of many GB is copied, or read whole, before the answer comes."""


def backup(
    url: Url = DEFAULT_URL,
    token: Token = None,
    to: Annotated[
        Path | None,
        typer.Option(help="Fetch it into this file; the server's own copy is removed then.", show_default=False),
    ] = None,
) -> None:
    """Copy the database of a server that runs; without --to the copy stays in its folder of backups."""
    from entrostat.wire.errors import Conflict

    if to is not None and to.exists():
        raise Conflict(f"{to} is there already: give another --to")
    server = client(url, token, _PATIENCE_S)
    made = server.send("POST", "/v1/backups")
    place = f"backups/{made['name']} in the server's data folder"
    if to is not None:
        _fetched(server, made, to)
        place = str(to)
    print(
        f"{place}: {_mib(made['num_bytes'])}, {made['num_runs']} runs, {made['num_batches']} batches; "
        f"the server's writer held still for {made['held_s']:.2f} s"
    )


def _fetched(server: "Client", made: dict[str, Any], to: Path) -> None:
    from entrostat.storage.files import written_aside
    from entrostat.wire.errors import WireError

    path = f"/v1/backups/{made['name']}"
    with written_aside(to) as partial:
        with partial.open("wb") as out:
            for piece in server.pieces(path):
                out.write(piece)
        if (came := partial.stat().st_size) != made["num_bytes"]:
            raise WireError(f"{came} of {made['num_bytes']} bytes came: {made['name']} is still on the server")
    server.send("DELETE", path)


def restore(
    file: Annotated[Path, typer.Argument(help="A backup, or any database file that no server has open.")],
    data: Data = Path("entrostat-data"),
) -> None:
    """Put a backup in the place of the database; the server must not run. What was there is put aside."""
    from entrostat.server.settings import DATABASE
    from entrostat.storage.restore import restore as put_in_place

    done = put_in_place(file, data / DATABASE)
    print(f"{data / DATABASE}: {done.contents.num_runs} runs, {done.contents.num_batches} batches, from {file}")
    if done.put_aside is not None:
        print(f"the database that was there is now {done.put_aside}")


def check(
    file: Annotated[
        Path | None, typer.Argument(help="A backup, or any file that no server has open.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Data folder of a server that does not run.", show_default=False)
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Read every value and hold the ledger against the rows: a file, a data folder, or a running server (--url)."""
    from entrostat.server.settings import DATABASE

    if file is not None and data is not None:
        raise typer.BadParameter("give a file or --data, not both")
    path = data / DATABASE if data is not None else file
    report = _of_server(url, token) if path is None else _of_file(path)
    _print(report, str(path or url))
    if not report["is_sound"]:
        raise typer.Exit(1)


def _of_server(url: str, token: str | None) -> dict[str, Any]:
    return dict(client(url, token, _PATIENCE_S).get("/v1/check"))


def _of_file(path: Path) -> dict[str, Any]:
    from dataclasses import asdict

    from entrostat.storage.restore import check_file

    report = check_file(path)
    return {"is_sound": report.is_sound, "num_rows": report.num_rows, "findings": [asdict(f) for f in report.findings]}


def _print(report: dict[str, Any], what: str) -> None:
    import pyarrow as pa

    from entrostat.cli.output import Format, write

    rows = [{"": "DAMAGE" if f["is_damage"] else "note", "table": f["table"], "what": f["what"]}
            for f in sorted(report["findings"], key=lambda f: not f["is_damage"])]  # fmt: skip
    if rows:
        write(pa.Table.from_pylist(rows), Format.table, None)
    verdict = "is sound" if report["is_sound"] else "is DAMAGED: restore a backup (entrostat restore)"
    print(f"{what} {verdict}; {report['num_rows']} rows read", file=sys.stdout if report["is_sound"] else sys.stderr)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
