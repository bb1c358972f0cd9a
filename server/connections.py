"""Connections that are opened and then say nothing: closed, and so many open at once as the process may hold."""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_OWN_FILES = 256
"""Open files of the process beside connections: the database, libraries, logs."""


def patient(patience_s: float) -> type[H11Protocol]:
    """uvicorn's HTTP/1.1, which closes a connection whose request has not begun ``patience_s`` after it could.

    uvicorn itself limits only the pause between two requests; one that sends a byte of a header now and then would
    hold its place for ever. Bodies are watched by ``BodyLimit``.
    """

    class Patient(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_watching()
            super().connection_lost(exc)

        def _watch(self) -> None:
            cycle: Any = self.cycle
            if cycle is not None and not cycle.response_complete:
                self._stop_watching()
            elif self._waiting is None and not self.transport.is_closing():
                self._waiting = self.loop.call_later(patience_s, self.timeout_keep_alive_handler)

        def _stop_watching(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return Patient


def make_room_for(num_connections: int) -> int:
    """Raise the process's limit of open files for so many connections; how many there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + _OWN_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(num_connections, max(1, soft - _OWN_FILES))
