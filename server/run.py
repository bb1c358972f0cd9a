"""Starting and stopping: the socket first, then the store, then the application."""

import logging
import signal
import socket
import sys
import time
from datetime import UTC, datetime

import uvicorn
from fastapi import FastAPI

from entrostat.server import restart
from entrostat.server.app import build_app, open_store
from entrostat.server.auth import Tokens, check_bind
from entrostat.server.connections import make_room_for, patient
from entrostat.server.health import package_version
from entrostat.server.settings import Settings
from entrostat.server.stopping import SIGNALS, StoppingServer
from entrostat.storage.store import Store
from entrostat.wire.errors import EntrostatError
from entrostat.wire.logs import event

_log = logging.getLogger(__name__)


CLOCK_TOLERANCE_S = 60.0
"""By so much the newest batch may be ahead of this machine's clock before the log says that it was set back."""


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
    started = time.monotonic()
    past = restart.Past.inherited()
    with restart.inherited_socket(past) or _listening(settings.host, settings.port) as listener:
        store = open_store(settings)
        try:
            with store:
                stopped_by = _serve(settings, store, past, listener)
            event(_log, logging.INFO, "stopped", signal=stopped_by, uptime_s=round(time.monotonic() - started, 1))
        finally:
            if store.num_queries:
                # The interpreter cannot end beside a thread that is inside the engine: it aborts.
                restart.end_process()


def _serve(settings: Settings, store: Store, past: restart.Past, listener: socket.socket) -> str | None:
    """Serve; returns the name of the signal that ended it."""
    overseer = restart.Overseer(store, past, settings.query_restart_s)
    app = build_app(settings, store, overseer)
    server = StoppingServer(_config(settings, app), app.state.readiness.begin_stopping, settings.drain_s)
    for number in SIGNALS:  # uvicorn's own handlers are in place only while it runs, and the store is closed after
        signal.signal(number, server.handle_exit)
    restart.let_signals_in()
    _tell_of_start(listener, store, settings)
    kept: list[socket.socket] = []

    def stop() -> None:
        kept.append(listener.dup())  # uvicorn closes its own; who connects meanwhile waits on this one
        app.state.readiness.begin_stopping()
        server.config.timeout_graceful_shutdown = restart.SHUTDOWN_S
        server.should_exit = True

    with overseer.watching(stop):
        server.run(sockets=[listener])
    if overseer.reason is not None and server.signal is None:
        store.settle(restart.SETTLE_S)
        restart.replace_process(past, overseer.reason, kept[0])
    return server.signal


def _config(settings: Settings, app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,  # its records go where ours do
        access_log=False,
        timeout_graceful_shutdown=settings.shutdown_s,
        http=patient(settings.head_patience_s),
        limit_concurrency=make_room_for(settings.max_connections),
        proxy_headers=False,
        server_header=False,
    )


def _tell_of_start(listener: socket.socket, store: Store, settings: Settings) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    sys.stdout.write(f"entrostat server on {url} (database in {settings.url})\n")
    sys.stdout.flush()
    opening = store.opening
    event(
        _log, logging.INFO, "started", version=package_version(), url=url, database=settings.url,
        schema=store.schema_version, recovered=bool(opening.replayed_bytes), replayed_bytes=opening.replayed_bytes,
        duration_s=round(opening.seconds, 3),
    )  # fmt: skip
    if opening.newest is not None:
        ahead_s = (opening.newest.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()
        if ahead_s > CLOCK_TOLERANCE_S:
            event(
                _log, logging.WARNING, "clock_set_back", behind_s=round(ahead_s),
                message="the newest batch is of the future: until the clock is right, times and `live` are wrong",
            )  # fmt: skip


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
