"""Whether a batch could be taken now, and what is said when that changes."""

import logging
import threading
import time
from dataclasses import dataclass

from entrostat.storage.state import StoreState
from entrostat.storage.store import Store
from entrostat.storage.writer import Commit
from entrostat.wire.logs import event

_log = logging.getLogger(__name__)

REASONS = ("stopping", "database_broken", "disk_full", "write_failed", "queue_full")
"""Why the server may not be ready, the gravest first."""
LOOK_EVERY_S = 1.0
WRITE_EVERY_S = 5.0
"""After a write that failed it is tried so often whether writing works again: else nobody might come to find out."""
NEARLY = 2.0
"""The disk is nearly full when less than this many times the floor is free."""


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why no batch can be taken: one of ``REASONS``, and a sentence."""

    reason: str
    message: str


class Readiness:
    """Asked by ``GET /v1/ready``, the metrics and ``Watch``."""

    def __init__(self, store: Store) -> None:
        self._store, self.is_stopping = store, False

    def begin_stopping(self) -> None:
        """The process was asked to stop. Called by a signal handler: it only sets a flag."""
        self.is_stopping = True

    def hindrance(self) -> Hindrance | None:
        """What keeps the server from taking a batch; None where it could."""
        state = self._store.state()
        if self.is_stopping:
            return Hindrance("stopping", "the server was asked to stop; it finishes what it has taken")
        if state.failure:
            return Hindrance("database_broken", f"the database has stopped working: {state.failure}")
        if state.disk_problem:
            return Hindrance("disk_full", state.disk_problem)
        if state.write_error:
            return Hindrance("write_failed", f"the last write failed: {state.write_error}")
        if state.is_queue_full:
            return Hindrance("queue_full", f"{state.queue_bytes} bytes of batches wait to be written")
        return None


class Watch:
    """A thread that looks once a second, and logs what begins and what ends. ``start`` and ``close`` it.

    Args:
        slow_commit_s: a commit that takes longer is logged.
    """

    def __init__(self, store: Store, readiness: Readiness, slow_commit_s: float) -> None:
        self._store, self._readiness, self._slow_commit_s = store, readiness, slow_commit_s
        self._hindered: Hindrance | None = None
        self._since = self._tried = time.monotonic()
        self._is_nearly_full = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="entrostat-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()

    def committed(self, commit: Commit) -> None:
        """A listener of commits."""
        if commit.seconds > self._slow_commit_s:
            event(
                _log, logging.WARNING, "commit_slow", duration_s=round(commit.seconds, 3), batches=commit.num_batches,
                rows=commit.num_rows, bytes=commit.num_bytes,
            )  # fmt: skip

    def look(self) -> None:
        """Look once."""
        self._tell_of_readiness(self._readiness.hindrance())
        state = self._store.state()
        self._tell_of_disk(state)
        if state.write_error and not state.failure and not state.disk_problem:
            self._try_to_write()

    def _work(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self.look()

    def _tell_of_readiness(self, now: Hindrance | None) -> None:
        before, self._hindered = self._hindered, now
        if (before and before.reason) == (now and now.reason):
            return
        lasted_s = round(time.monotonic() - self._since, 1)
        self._since = time.monotonic()
        if before:
            event(_log, logging.WARNING, "hindrance_ended", code=before.reason, duration_s=lasted_s)
        if now:
            event(_log, logging.WARNING, "not_ready", code=now.reason, message=now.message)

    def _tell_of_disk(self, state: StoreState) -> None:
        if state.free_bytes is None:
            return
        is_nearly_full = state.free_bytes < NEARLY * state.min_free_bytes
        if is_nearly_full and not self._is_nearly_full:
            event(
                _log, logging.WARNING, "disk_nearly_full", free_mb=state.free_bytes // 2**20,
                min_free_mb=state.min_free_bytes // 2**20,
            )  # fmt: skip
        self._is_nearly_full = is_nearly_full

    def _try_to_write(self) -> None:
        if time.monotonic() - self._tried < WRITE_EVERY_S:
            return
        self._tried = time.monotonic()
        try:
            self._store.try_write()
        except Exception as error:  # noqa: BLE001 whatever it is: the state of the store says it, and we try again
            event(_log, logging.WARNING, "write_failed", message=str(error))
