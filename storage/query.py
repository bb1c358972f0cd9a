"""People's queries: guarded, few at a time, in a read-only transaction, with limits on time, memory, rows and bytes."""

import threading
from contextlib import AbstractContextManager
from typing import Protocol

import duckdb
import pyarrow as pa

from entrostat.storage.errors import QueryBusy
from entrostat.storage.result_size import cut_to, size_of
from entrostat.storage.running_query import GRACE_S, Answer, QueryLimits, RunningQuery
from entrostat.storage.sql_guard import Guard
from entrostat.storage.views import PUBLIC_VIEWS
from entrostat.wire.errors import QueryError

ROWS_PER_CHUNK = 1_000
"""A chunk is whole in memory before it can be cut."""
MEMORY_SLACK_MB = 512
"""Beyond the engine's own limit: what ingest may take while a query runs."""


class Cursors(Protocol):
    """What is asked: it gives each query a connection of its own."""

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same database, for one thread."""

    def noting_failure(self) -> AbstractContextManager[None]:
        """Around what is asked: notices when the engine declares itself broken."""


class QueryPool:
    """Runs people's SELECTs.

    Args:
        max_queries: as many at once; ingest keeps the rest of the machine.
        timeout_s: a query is stopped after so long.
        max_result_bytes: a result is cut at so many bytes (as Arrow in memory, see ``result_size.py``).
        memory_limit_mb: a query is stopped when the process has grown by this and ``MEMORY_SLACK_MB``.
        patience_s: how long a query waits for a slot.
    """

    def __init__(
        self,
        database: Cursors,
        max_queries: int = 2,
        timeout_s: float = 10.0,
        max_result_bytes: int = 64 * 2**20,
        memory_limit_mb: int = 4096,
        patience_s: float = 2.0,
    ) -> None:
        self._database, self._guard = database, Guard(PUBLIC_VIEWS)
        self._slots, self._patience_s = threading.Semaphore(max_queries), patience_s
        self._max_queries, self._max_result_bytes = max_queries, max_result_bytes
        self._limits = QueryLimits(timeout_s, (memory_limit_mb + MEMORY_SLACK_MB) * 2**20)
        self._running: set[RunningQuery] = set()

    def run(self, sql: str, max_rows: int) -> Answer:
        """The first ``max_rows`` rows of ``sql``. Comes back at most ``GRACE_S`` after the time limit.

        Raises:
            QueryForbidden: not a SELECT over the public views.
            QueryError: it cannot be parsed, bound or computed (the engine's own words), or takes too much memory.
            QueryTimeout: it took too long.
            QueryBusy: all slots are taken.
        """
        if not self._slots.acquire(timeout=self._patience_s):
            raise QueryBusy(f"{self._max_queries} queries are running, as many as may: ask again in a moment")
        try:
            self._guard.check(sql)  # in the slot: 100,000 characters take it a second
            cursor = self._database.cursor()
        except BaseException:
            self._slots.release()
            raise
        query = RunningQuery(sql, cursor, lambda: self._read(cursor, sql, max_rows), self._limits, self._ended)
        self._running.add(query)
        return query.answer()

    def runaway(self, after_s: float) -> str | None:
        """Which query the engine does not let go of, in a sentence; None where there is none.

        Args:
            after_s: so long after it was told to stop; 0: never, however long. One that still takes memory beyond its
                limit is one after ``GRACE_S``.
        """
        for query in list(self._running):
            if query.told_to_stop_s > GRACE_S and query.is_over_memory:
                return "a query takes too much memory and cannot be stopped"
            if after_s and query.told_to_stop_s > after_s:
                return f"a query cannot be stopped, {after_s:g} s after it was told to"
        return None

    @property
    def num_running(self) -> int:
        """Queries that the engine has not let go of."""
        return len(self._running)

    def close(self) -> None:
        """Let go of the parser."""
        self._guard.close()

    def _ended(self, query: RunningQuery) -> None:
        self._running.discard(query)
        self._slots.release()

    def _read(self, cursor: duckdb.DuckDBPyConnection, sql: str, max_rows: int) -> tuple[pa.Table, bool]:
        with self._database.noting_failure():
            cursor.execute("begin transaction read only")
            reader = cursor.sql(sql).to_arrow_reader(ROWS_PER_CHUNK)
            chunks: list[pa.RecordBatch] = []
            num_rows, left_bytes = 0, self._max_result_bytes
            for chunk in reader:
                kept = cut_to(chunk.slice(0, max_rows - num_rows), left_bytes)
                if not num_rows and not kept.num_rows and chunk.num_rows:
                    raise QueryError(_too_large(chunk, self._max_result_bytes))
                chunks.append(kept)
                num_rows += kept.num_rows
                left_bytes -= size_of(kept)
                if kept.num_rows < chunk.num_rows:
                    return pa.Table.from_batches(chunks, reader.schema), True
            return pa.Table.from_batches(chunks, reader.schema), False


def _too_large(chunk: pa.RecordBatch, max_bytes: int) -> str:
    sizes = {field.name: size_of(chunk.slice(0, 1).select([i])) for i, field in enumerate(chunk.schema)}
    name = max(sizes, key=lambda n: sizes[n])
    return (
        f"the first row alone has {sum(sizes.values())} bytes, {sizes[name]} of them in the column {name!r}; a result "
        f"is cut at {max_bytes}: ask for less of it, for example left({name}, 1000)"
    )
