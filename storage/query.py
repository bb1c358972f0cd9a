"""People's queries: guarded, two at a time, in a read-only transaction, with a limit on time, rows and bytes."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import duckdb
import pyarrow as pa

from entrostat.storage.errors import QueryBusy
from entrostat.storage.sql_guard import Guard
from entrostat.storage.views import PUBLIC_VIEWS
from entrostat.wire.errors import QueryError, QueryTimeout

ROWS_PER_CHUNK = 10_000
INTERRUPT_EVERY_S = 0.05


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


class Cursors(Protocol):
    """What is asked: it gives each query a connection of its own."""

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same database, for one thread."""


class QueryPool:
    """Runs people's SELECTs.

    Args:
        max_queries: as many at once; ingest keeps the rest of the machine.
        timeout_s: a query is stopped after so long.
        max_result_bytes: a result is cut at so many bytes (as Arrow in memory).
        patience_s: how long a query waits for a slot.
    """

    def __init__(
        self,
        database: Cursors,
        max_queries: int = 2,
        timeout_s: float = 10.0,
        max_result_bytes: int = 64 * 2**20,
        patience_s: float = 2.0,
    ) -> None:
        self._database, self._guard = database, Guard(PUBLIC_VIEWS)
        self._slots, self._patience_s = threading.Semaphore(max_queries), patience_s
        self._max_queries, self._timeout_s, self._max_result_bytes = max_queries, timeout_s, max_result_bytes

    def run(self, sql: str, max_rows: int) -> Answer:
        """The first ``max_rows`` rows of ``sql``.

        Raises:
            QueryForbidden: not a SELECT over the public views.
            QueryError: it cannot be parsed, bound or computed; the engine's own words.
            QueryTimeout: it took too long.
            QueryBusy: all slots are taken.
        """
        self._guard.check(sql)
        if not self._slots.acquire(timeout=self._patience_s):
            raise QueryBusy(f"{self._max_queries} queries are running, as many as may: ask again in a moment")
        try:
            return self._run(sql, max_rows)
        finally:
            self._slots.release()

    def close(self) -> None:
        """Let go of the parser."""
        self._guard.close()

    def _run(self, sql: str, max_rows: int) -> Answer:
        started = time.perf_counter()
        cursor = self._database.cursor()
        try:
            cursor.execute("begin transaction read only")
            with _interrupted_after(cursor, self._timeout_s) as is_late:
                try:
                    table, is_truncated = self._read(cursor, sql, max_rows)
                except (duckdb.Error, pa.ArrowException, RuntimeError) as error:
                    if is_late.is_set():
                        raise QueryTimeout(f"stopped after {self._timeout_s:g} s: ask for less at a time") from error
                    raise QueryError(_in_short(error)) from error
        finally:
            cursor.close()
        return Answer(table, is_truncated, time.perf_counter() - started)

    def _read(self, cursor: duckdb.DuckDBPyConnection, sql: str, max_rows: int) -> tuple[pa.Table, bool]:
        reader = cursor.sql(sql).to_arrow_reader(ROWS_PER_CHUNK)
        chunks, num_rows, num_bytes = [], 0, 0
        for chunk in reader:
            left = max_rows - num_rows
            chunks.append(chunk.slice(0, left))
            num_rows += chunk.num_rows
            num_bytes += chunk.nbytes
            if num_rows > max_rows or num_bytes > self._max_result_bytes:
                return pa.Table.from_batches(chunks, reader.schema), True
        return pa.Table.from_batches(chunks, reader.schema), False


@contextlib.contextmanager
def _interrupted_after(cursor: duckdb.DuckDBPyConnection, timeout_s: float) -> Iterator[threading.Event]:
    """Stop what runs on ``cursor`` after ``timeout_s``: again and again, because one interrupt may come too early."""
    is_done, is_late = threading.Event(), threading.Event()

    def watch() -> None:
        if is_done.wait(timeout_s):
            return
        is_late.set()
        while not is_done.wait(INTERRUPT_EVERY_S):
            cursor.interrupt()

    watcher = threading.Thread(target=watch, name="entrostat-query-timer", daemon=True)
    watcher.start()
    try:
        yield is_late
    finally:
        is_done.set()
        watcher.join()


def _in_short(error: BaseException) -> str:
    """The engine's message without the hints about its own settings."""
    return str(error).split("\n\nPossible solutions", maxsplit=1)[0].strip()
