"""One query on a thread of its own, watched: who asked is answered in time, whatever the engine does.

``interrupt()`` takes effect between two pieces of the engine's work. It does not reach into one long call (a search for
two megabytes in four), and strings are not counted by the engine's ``memory_limit``. So who asked gets an answer when
the time is up, the query keeps its slot until the engine comes back, and ``told_to_stop_s`` says for how long it has
not: the server then replaces itself (``server/restart.py``).
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from entrostat.wire.errors import QueryError, QueryTimeout
from entrostat.wire.logs import event

_log = logging.getLogger(__name__)

GRACE_S = 2.0
"""So long the engine may take to stop before who asked is answered without it: 0.05 to 0.6 s is usual."""
LOOK_EVERY_S = 0.05
"""One interrupt may come too early and be forgotten: it is sent again and again."""

LOGGED_CHARS = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query.

    Args:
        is_truncated: there were more; they were cut at the limit of rows or bytes.
        seconds: how long it took.
    """

    table: pa.Table
    is_truncated: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """When a query is told to stop.

    Args:
        timeout_s: after so long.
        max_growth_bytes: when the process has grown by so much since the query began (Linux only).
    """

    timeout_s: float
    max_growth_bytes: int


class RunningQuery:
    """A query and the two threads that run and watch it.

    Args:
        sql: the statement.
        cursor: where it runs; closed at its end.
        work: gives the rows and whether they were cut; runs on the query's thread.
        on_end: called when the engine has come back, before the answer is there.
    """

    def __init__(
        self,
        sql: str,
        cursor: duckdb.DuckDBPyConnection,
        work: Callable[[], tuple[pa.Table, bool]],
        limits: QueryLimits,
        on_end: Callable[["RunningQuery"], None],
    ) -> None:
        self.sql = sql
        self._cursor, self._work, self._limits, self._on_end = cursor, work, limits, on_end
        self._answer: Future[Answer] = Future()
        self._is_over = threading.Event()
        self._began_s, self._began_bytes = time.monotonic(), resident_bytes()
        self._stopped: tuple[float, QueryError] | None = None
        self._watcher = threading.Thread(target=self._watch, name="entrostat-query-watch", daemon=True)
        self._runner = threading.Thread(target=self._run, name="entrostat-query", daemon=True)

    def answer(self) -> Answer:
        """Run it, and wait for the answer or for the limits, whichever comes first.

        Raises:
            QueryError, QueryTimeout: see ``QueryPool.run``.
        """
        self._watcher.start()
        try:
            self._runner.start()
        except RuntimeError:  # no thread is to be had
            self._end()
            raise
        return self._answer.result()

    @property
    def told_to_stop_s(self) -> float:
        """For how long it has been told to stop; 0 where it has not."""
        return time.monotonic() - self._stopped[0] if self._stopped else 0.0

    @property
    def is_over_memory(self) -> bool:
        """Whether the process has grown by more than the limit since it began."""
        return resident_bytes() - self._began_bytes > self._limits.max_growth_bytes

    def _run(self) -> None:
        outcome = self._outcome()
        try:
            self._end()
        finally:
            self._settle(outcome)

    def _outcome(self) -> "Answer | BaseException":
        try:
            table, is_truncated = self._work()
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:  # OSError is Arrow's, too
            return self._stopped[1] if self._stopped else QueryError(_in_short(error))
        except BaseException as error:  # noqa: BLE001 it belongs to who asked
            return error
        return Answer(table, is_truncated, time.monotonic() - self._began_s)

    def _end(self) -> None:
        self._is_over.set()
        self._watcher.join()  # before the cursor closes: it may be interrupting it
        self._cursor.close()
        self._on_end(self)

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_EVERY_S):
            if self._stopped is None and (reason := self._over_limit()) is not None:
                self._stopped = (time.monotonic(), reason)
            if self._stopped is not None:
                with contextlib.suppress(duckdb.ConnectionException):  # the store was closed without waiting for it
                    self._cursor.interrupt()
                if self.told_to_stop_s > GRACE_S and not self._answer.done():
                    said = " ".join(self.sql.split())[:LOGGED_CHARS]
                    event(_log, logging.WARNING, "query_not_stopped", message=said)
                    self._settle(self._stopped[1])

    def _over_limit(self) -> QueryError | None:
        if time.monotonic() - self._began_s > self._limits.timeout_s:
            return QueryTimeout(f"stopped after {self._limits.timeout_s:g} s: ask for less at a time")
        if self.is_over_memory:
            taken_mb = self._limits.max_growth_bytes // 2**20
            return QueryError(f"stopped: it took more than {taken_mb} MiB of memory: ask for less at a time")
        return None

    def _settle(self, outcome: "Answer | BaseException") -> None:
        with contextlib.suppress(InvalidStateError):  # it was answered when its time was up
            if isinstance(outcome, Answer):
                self._answer.set_result(outcome)
            else:
                self._answer.set_exception(outcome)


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say (elsewhere than on Linux)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _in_short(error: BaseException) -> str:
    """The engine's message without the hints about its own settings."""
    return str(error).split("\n\nPossible solutions", maxsplit=1)[0].strip()
