"""Options that several commands share, and the client they lead to."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from entrostat.wire.client import Client

Url = Annotated[str, typer.Option("--url", envvar="ENTROSTAT_URL", help="The server.")]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="ENTROSTAT_TOKEN", help="For a server that asks for one.", show_default=False),
]
DEFAULT_URL = "http://localhost:8321"


def client(url: str, token: str | None, timeout_s: float = 30.0) -> "Client":
    """A client of the server at ``url``, that waits so long for an answer."""
    from entrostat.wire.client import Client

    return Client(url, token, timeout_s)
