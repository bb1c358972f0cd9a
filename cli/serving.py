"""``up``, ``serve``, ``dashboard``: the processes people look at; ``token``: who may."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from entrostat.cli.options import DEFAULT_URL, Url

Data = Annotated[Path, typer.Option("--data", envvar="ENTROSTAT_DATA", help="Folder of the database.")]
Host = Annotated[str, typer.Option(help="Address to listen on; any but loopback needs tokens.")]
Tokens = Annotated[
    Path | None,
    typer.Option("--tokens", envvar="ENTROSTAT_TOKENS", help="File of hashed tokens (entrostat token add)."),
]
TokenFile = Annotated[Path, typer.Option("--tokens", envvar="ENTROSTAT_TOKENS", help="The file.")]

token = typer.Typer(help="Tokens of a server: who may send, read, control, administer.", no_args_is_help=True)


def server_command(data: Path, host: str, port: int, tokens: Path | None = None) -> list[str]:
    """The command line of a server process."""
    command = [sys.executable, "-m", "entrostat.server", "--data", str(data), "--host", host, "--port", str(port)]
    return command + (["--tokens", str(tokens)] if tokens else [])


def dashboard_command(server_url: str, host: str, port: int) -> list[str]:
    """The command line of a dashboard process."""
    return [
        sys.executable,
        "-m",
        "entrostat.dashboard",
        "--server-url",
        server_url,
        "--host",
        host,
        "--port",
        str(port),
    ]


def serve(
    data: Data = Path("entrostat-data"), host: Host = "127.0.0.1", port: int = 8321, tokens: Tokens = None
) -> None:
    """The server alone: takes the streams, keeps them, answers SQL."""
    _become(server_command(data, host, port, tokens))


def dashboard(url: Url = DEFAULT_URL, host: Host = "127.0.0.1", port: int = 8050) -> None:
    """The dashboard alone, for a server that runs elsewhere (ENTROSTAT_TOKEN; on other addresses visitors sign in)."""
    _become(dashboard_command(url, host, port))


def _become(command: list[str]) -> NoReturn:
    """Be the process of ``command``: a parent in between would keep its signals, and on Ctrl+C kill it at once."""
    os.execv(command[0], command)


def up(
    data: Data = Path("entrostat-data"),
    host: Host = "127.0.0.1",
    port: int = 8321,
    dashboard_port: int = 8050,
    tokens: Tokens = None,
) -> None:
    """Server and dashboard on this machine, until Ctrl+C."""
    from entrostat.cli.processes import Processes

    with Processes() as processes:
        processes.start("server", server_command(data, host, port, tokens))
        processes.wait_for(f"http://127.0.0.1:{port}/healthz", "server")
        processes.start("dashboard", dashboard_command(f"http://127.0.0.1:{port}", host, dashboard_port))
        processes.wait_for(f"http://127.0.0.1:{dashboard_port}/", "dashboard")
        print(f"server     http://{host}:{port}   (database in {data})")
        print(f"dashboard  http://{host}:{dashboard_port}")
        print("attach a run with entrostat.attach(trainer); stop with Ctrl+C")
        processes.wait_until_stopped()


@token.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    scope: Annotated[list[str], typer.Option(help="ingest, read, control, admin; repeat for several.")],
    tokens: TokenFile = Path("entrostat-tokens.json"),
) -> None:
    """Make a token, printed once; the file keeps its hash."""
    from entrostat.server.auth import add_token

    print(add_token(tokens, name, scope))


@token.command("list")
def list_all(tokens: TokenFile = Path("entrostat-tokens.json")) -> None:
    """Names, scopes and dates of the tokens."""
    from entrostat.server.auth import list_tokens

    for entry in list_tokens(tokens):
        print(f"{entry['name']}  {' '.join(entry['scopes'])}  {entry['created']}")


@token.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="As it was made.")], tokens: TokenFile = Path("entrostat-tokens.json")
) -> None:
    """Revoke a token: a running server refuses it from its next request on, and who is signed in with it too."""
    from entrostat.server.auth import remove_token
    from entrostat.wire.errors import NotFound

    if not remove_token(tokens, name):
        raise NotFound(f"no token named {name!r} in {tokens}: entrostat token list shows them")
