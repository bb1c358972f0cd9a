"""Starting and stopping: the socket first, then the store, then the application."""

import logging
import signal
import socket
import sys
import time
from datetime import UTC, datetime

import uvicorn

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

    Raises:
        AuthError: the address needs tokens, or their file cannot be read.
        CannotListen: the port is taken.
        StorageError: the database cannot be opened.
    """
    check_bind(settings.host, Tokens(settings.tokens_path))
    started = time.monotonic()
    with _listening(settings.host, settings.port) as listener, open_store(settings) as store:
        app = build_app(settings, store)
        config = uvicorn.Config(
            app,
            log_config=None,  # its records go where ours do
            access_log=False,
            timeout_graceful_shutdown=settings.shutdown_s,
            http=patient(settings.head_patience_s),
            limit_concurrency=make_room_for(settings.max_connections),
            proxy_headers=False,
            server_header=False,
        )
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        server = StoppingServer(config, app.state.readiness.begin_stopping, settings.drain_s)
        for number in SIGNALS:  # uvicorn's own handlers are in place only while it runs, and the store is closed after
            signal.signal(number, server.handle_exit)
        sys.stdout.write(f"entrostat server on {url} (database in {settings.url})\n")
        sys.stdout.flush()
        _tell_of_start(store, url, settings.url)
        server.run(sockets=[listener])
    event(_log, logging.INFO, "stopped", signal=server.signal, uptime_s=round(time.monotonic() - started, 1))


def _tell_of_start(store: Store, url: str, database: str) -> None:
    opening = store.opening
    event(
        _log, logging.INFO, "started", version=package_version(), url=url, database=database,
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
