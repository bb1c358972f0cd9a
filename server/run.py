"""Starting and stopping: the socket first, then the store, then the application."""

import signal
import socket
import sys
from types import FrameType

import uvicorn

from entrostat.server import restart
from entrostat.server.app import build_app, open_store
from entrostat.server.auth import Tokens, check_bind
from entrostat.server.settings import Settings
from entrostat.storage.store import Store
from entrostat.wire.errors import EntrostatError


class CannotListen(EntrostatError):
    """The address cannot be listened on; says why and what to do."""


def serve(settings: Settings) -> None:
    """Serve until the process is asked to stop (SIGINT, SIGTERM); then finish requests and close the store.

    Where it has to, the process replaces itself (``restart.py``) and serves on.

    Raises:
        AuthError: the address needs tokens, or their file cannot be read.
        CannotListen: the port is taken.
        StorageError: the database cannot be opened.
    """
    check_bind(settings.host, Tokens(settings.tokens_path))
    past = restart.Past.inherited()
    with restart.inherited_socket(past) or _listening(settings.host, settings.port) as listener:
        store = open_store(settings)
        try:
            with store:
                _serve(settings, store, past, listener)
        finally:
            if store.num_queries:
                # The interpreter cannot end beside a thread that is inside the engine: it aborts.
                restart.end_process()


def _serve(settings: Settings, store: Store, past: restart.Past, listener: socket.socket) -> None:
    overseer = restart.Overseer(store, past, settings.query_restart_s)
    server = uvicorn.Server(_config(settings, build_app(settings, store, overseer)))
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again once it has stopped: the default handler would end the process there,
        # before the store is closed.
        signal.signal(number, _stop)
    restart.let_signals_in()
    _say(listener, settings)
    kept: list[socket.socket] = []

    def stop() -> None:
        kept.append(listener.dup())  # uvicorn closes its own; who connects meanwhile waits on this one
        server.config.timeout_graceful_shutdown = restart.SHUTDOWN_S
        server.should_exit = True

    with overseer.watching(stop):
        server.run(sockets=[listener])
    if overseer.reason is not None:
        store.settle(restart.SETTLE_S)
        restart.replace_process(past, overseer.reason, kept[0])


def _config(settings: Settings, app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # FastAPI is an ASGI application, which its types say more narrowly
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=settings.shutdown_s,
        server_header=False,
    )


def _say(listener: socket.socket, settings: Settings) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(f"entrostat server on http://{shown}:{port} (database in {settings.url})\n")
    sys.stdout.flush()


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
