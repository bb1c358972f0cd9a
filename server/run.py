"""Starting and stopping: the socket first, then the store, then the application."""

import signal
import socket
import sys
from types import FrameType

import uvicorn

from entrostat.server.app import build_app, open_store
from entrostat.server.auth import Tokens, check_bind
from entrostat.server.connections import make_room_for, patient
from entrostat.server.settings import Settings
from entrostat.wire.errors import EntrostatError


class CannotListen(EntrostatError):
    """The address cannot be listened on; says why and what to do."""


def serve(settings: Settings) -> None:
    """Serve until the process is asked to stop (SIGINT, SIGTERM); then finish requests and close the store.

    Raises:
        AuthError: the address needs tokens, or their file cannot be read.
        CannotListen: the port is taken.
        StorageError: the database cannot be opened.
    """
    check_bind(settings.host, Tokens(settings.tokens_path))
    with _listening(settings.host, settings.port) as listener, open_store(settings) as store:
        app = build_app(settings, store)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=settings.shutdown_s,
            http=patient(settings.head_patience_s),
            limit_concurrency=make_room_for(settings.max_connections),
            proxy_headers=False,
            server_header=False,
        )
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn raises the signal again once it has stopped: the default handler would end the process there,
            # before the store is closed.
            signal.signal(number, _stop)
        sys.stdout.write(f"entrostat server on http://{shown}:{port} (database in {settings.url})\n")
        sys.stdout.flush()
        uvicorn.Server(config).run(sockets=[listener])


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port} ({error}): stop what does, or give --port") from error
    return listener
