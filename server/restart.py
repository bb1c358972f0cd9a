"""The server replaces itself where nothing else helps: a query that cannot be stopped, an engine that is broken.

``exec`` keeps the process id and the listening socket, so that no connection is refused: those that come meanwhile
wait. The kernel ends every other thread, the one inside the engine included, and closes the database's file, whose
lock goes with it. What was accepted is written before; what was not acknowledged is sent again by who sent it.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, Self

from entrostat.server.stopping import SIGNALS
from entrostat.storage.store import Store
from entrostat.wire.logs import event

_log = logging.getLogger(__name__)

ENVIRONMENT = "ENTROSTAT_RESTARTED"
MAX_RESTARTS, WINDOW_S = 3, 600.0
"""Who has to replace itself more often has a reason that this does not cure: it stays as it is, and says so."""
LOOK_EVERY_S = 0.5
SETTLE_S = 60.0
"""So long the writer may take for what was accepted."""
SHUTDOWN_S = 3
"""Requests in progress get so long: senders send again what was cut."""


@dataclass(frozen=True, slots=True)
class Past:
    """What this process was before it replaced itself.

    Args:
        count: how often it did.
        times: when, in seconds since 1970, within the last ``WINDOW_S``.
        reason: why, the last time.
        listener_fd: the socket that it listens on; None in a process that never did.
    """

    count: int = 0
    times: tuple[float, ...] = ()
    reason: str | None = None
    listener_fd: int | None = None

    @classmethod
    def inherited(cls) -> Self:
        """From the environment, where it is taken out."""
        text = os.environ.pop(ENVIRONMENT, None)
        if text is None:
            return cls()
        held = json.loads(text)
        return cls(held["count"], tuple(held["times"]), held["reason"], held["listener_fd"])

    def with_another(self, reason: str, listener_fd: int) -> str:
        """The environment's text for the next one."""
        times = (*self.recent(), time.time())
        held = {"count": self.count + 1, "times": times, "reason": reason, "listener_fd": listener_fd}
        return json.dumps(held)

    def recent(self) -> tuple[float, ...]:
        """The times within the last ``WINDOW_S``."""
        return tuple(t for t in self.times if time.time() - t < WINDOW_S)

    @property
    def may_again(self) -> bool:
        """Whether another one is not too many."""
        return len(self.recent()) < MAX_RESTARTS


class Overseer:
    """Looks whether the server has to replace itself.

    Args:
        restart_s: a query that has not ended so long after its time was up is a reason; 0: never.
    """

    def __init__(self, store: Store, past: Past | None = None, restart_s: float = 0.0) -> None:
        self.past = past or Past()
        self.began_s = time.monotonic()
        self.reason: str | None = None
        """Why the server is about to replace itself."""
        self._store, self._restart_s = store, restart_s

    @property
    def problem(self) -> str | None:
        """Why the server is not well; None where it is."""
        found = self._found()
        if found is None or self.past.may_again:
            return self._store.failure
        return (
            f"{found}; the server has replaced itself {MAX_RESTARTS} times within {WINDOW_S / 60:g} minutes and does "
            "not do so again until that is over: restart it by hand"
        )

    @contextlib.contextmanager
    def watching(self, stop: Callable[[], None]) -> Iterator[None]:
        """Look every ``LOOK_EVERY_S``; call ``stop`` once, when there is a reason."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(LOOK_EVERY_S):
                found = self._found()
                if found is not None and self.past.may_again:
                    self.reason = found
                    event(_log, logging.ERROR, "replaces_itself", message=found)
                    stop()
                    return

        watcher = threading.Thread(target=watch, name="entrostat-overseer", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

    def _found(self) -> str | None:
        failure = self._store.failure
        if failure is not None:
            return f"the database has stopped working: {failure}"
        return self._store.runaway_query(self._restart_s)


def replace_process(past: Past, reason: str, listener: socket.socket) -> NoReturn:
    """Begin anew as the same process, with the same command line, on the same socket."""
    # Until the next one has its handlers (``let_signals_in``): who asks it to stop finds the database closed.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    listener.set_inheritable(True)
    os.environ[ENVIRONMENT] = past.with_another(reason, listener.fileno())
    _flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def end_process() -> NoReturn:
    """End at once, with what is on its way: 0 where that is nothing or ``SystemExit``, else 1 with its traceback."""
    error = sys.exc_info()[1]
    is_asked = error is None or isinstance(error, SystemExit)
    if not is_asked:
        _log.error("the server failed", exc_info=error)
    _flush()
    os._exit(0 if is_asked else 1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # who read it has gone
            stream.flush()


def let_signals_in() -> None:
    """Take the signals that were held back while the process was replaced."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def inherited_socket(past: Past) -> socket.socket | None:
    """The socket that the process listened on before; None where there is none."""
    if past.listener_fd is None:
        return None
    listener = socket.socket(fileno=past.listener_fd)
    listener.set_inheritable(False)
    return listener
