"""The one thread that writes: batches of all streams share commits, and a promise is kept only after COMMIT.

A commit costs one fsync, whatever is in it; so each takes all that has arrived from all streams while the one before
was written. It does not linger for more: a stream's next batch comes when this one is acknowledged, and 50 ms of
lingering made one stream's ingest 2.3 times slower (``benchmarks/server_ingest.py`` with ENTROSTAT_SERVER_LINGER_MS).
Other changes (a stream opens, a tag is set) are jobs: each a transaction of its own, in the order in which they came.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import duckdb

from entrostat.storage import baseline, rows, streams
from entrostat.storage.database import Database
from entrostat.storage.disk import Disk, disk_full
from entrostat.storage.errors import Busy, DatabaseBroken, StorageError
from entrostat.storage.rows import Batch
from entrostat.storage.schema import ROW_GROUP_ROWS
from entrostat.storage.streams import Stream
from entrostat.wire.errors import MalformedBatch
from entrostat.wire.logs import event

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)

MEMORY_RETRIES = 5
_MANY_GROUPS, _NEARLY_WHOLE = 4, 0.75


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit did, for who counts.

    Args:
        num_duplicates: batches that were held already.
        seconds: from the beginning of the transaction to the end of COMMIT.
    """

    num_batches: int
    num_duplicates: int
    num_rows: int
    num_bytes: int
    seconds: float
    runs: frozenset[str]


@dataclass(slots=True)
class _Waiting:
    batch: Batch
    future: "Future[bool]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _Job:
    action: Callable[[duckdb.DuckDBPyConnection], Any]
    in_transaction: bool = True
    future: "Future[Any]" = field(default_factory=Future)


def well_filled(num_rows: Sequence[int]) -> int:
    """How many of the batches that wait, with so many token rows each, go into one commit; at least one.

    A commit with a whole row group goes to the file by itself, and its last group, which is rarely whole, with it: one
    and a half groups take twice the room that they must (``benchmarks/row_groups.py``). So what is over waits for the
    next commit, unless the last group is nearly whole, or one of many.
    """
    best = total = 0
    for number, of_batch in enumerate(num_rows, 1):
        total += of_batch
        groups, over = divmod(total, ROW_GROUP_ROWS)
        if groups == 0 or groups >= _MANY_GROUPS or over == 0 or over > _NEARLY_WHOLE * ROW_GROUP_ROWS:
            best = number
    return max(best, 1)


class Writer:
    """Owns the writing cursor.

    Args:
        decimals: see ``rows.insert_rows``.
        linger_s: how long the first batch of a commit waits for others.
        max_commit_bytes: a commit takes no more than this (but always one batch).
        max_queue_bytes: batches beyond it are refused with ``Busy``.
        on_commit: called after each commit, on the writer's thread.
        disk: below its floor batches are refused with ``DiskFull``.
    """

    def __init__(
        self,
        database: Database,
        decimals: int | None = 4,
        linger_s: float = 0.0,
        max_commit_bytes: int = 64 * 2**20,
        max_queue_bytes: int = 512 * 2**20,
        on_commit: Callable[[Commit], None] = lambda _: None,
        disk: Disk | None = None,
    ) -> None:
        self._cursor = database.cursor()
        self._decimals, self._linger_s = decimals, linger_s
        self._max_commit_bytes, self._max_queue_bytes = max_commit_bytes, max_queue_bytes
        self._on_commit = on_commit
        self._disk = disk or Disk(":memory:", 0)
        self._thresholds = baseline.thresholds(self._cursor)
        self._gone: set[Stream] = set()
        self._queue: deque[_Waiting | _Job] = deque()
        self._changed = threading.Condition()
        self._queue_bytes, self._is_closing = 0, False
        self._num_waiting, self._turned_away_bytes = 0, 0
        self._committing_since: float | None = None
        self.failure: str | None = None
        """Why nothing can be written any more; None while all is well."""
        self.write_error: str | None = None
        """Why the last write failed, where the disk or the engine is to blame; None since one worked."""
        self._thread = threading.Thread(target=self._work, name="entrostat-writer", daemon=True)
        self._thread.start()

    @property
    def queue_bytes(self) -> int:
        """Memory of the batches that wait or are being committed."""
        return self._queue_bytes

    @property
    def num_waiting(self) -> int:
        """Batches that wait or are being committed."""
        return self._num_waiting

    @property
    def oldest_waiting_s(self) -> float:
        """How long the oldest of them has waited; 0 where there is none."""
        with self._changed:
            waiting = (item.since for item in self._queue if isinstance(item, _Waiting))
            since = self._committing_since or next(waiting, None)
        return 0.0 if since is None else time.monotonic() - since

    @property
    def is_full(self) -> bool:
        """Whether the batch that was last refused for want of room would be refused again."""
        return bool(self._queue_bytes) and self._queue_bytes + self._turned_away_bytes > self._max_queue_bytes

    def add(self, batch: Batch) -> "Future[bool]":
        """Hand a batch over. The future gives, after COMMIT, whether it was held already.

        Raises:
            Busy: the queue is full, or the store is closing.
            DiskFull: less is free on the disk than must stay.
            DatabaseBroken: the engine has stopped working.
        """
        waiting = _Waiting(batch)
        with self._changed:
            self._refuse_if_closed()
            if self._queue_bytes and self._queue_bytes + batch.memory_bytes > self._max_queue_bytes:
                self._turned_away_bytes = batch.memory_bytes
                raise Busy(f"{self._queue_bytes} bytes of batches wait to be written: send this one again in a moment")
            self._disk.check(self._queue_bytes, batch.memory_bytes)
            self._queue_bytes += batch.memory_bytes
            self._num_waiting += 1
            self._queue.append(waiting)
            self._changed.notify()
        return waiting.future

    def do(self, action: Callable[[duckdb.DuckDBPyConnection], _Result]) -> _Result:
        """Run ``action`` in a transaction on the writer's thread, wait for its COMMIT, and return what it returned."""
        result: _Result = self._done(_Job(action))
        return result

    def hold_still(self, action: Callable[[duckdb.DuckDBPyConnection], _Result]) -> _Result:
        """As ``do``, without a transaction: while ``action`` runs nothing is written, and batches wait in the queue."""
        result: _Result = self._done(_Job(action, in_transaction=False))
        return result

    def _done(self, job: _Job) -> Any:
        with self._changed:
            self._refuse_if_closed()
            self._queue.append(job)
            self._changed.notify()
        return job.future.result()

    def know_baseline(self, run: int, cursor: duckdb.DuckDBPyConnection) -> None:
        """A run was imported, with its baseline where it has one. Called from a job."""
        threshold = baseline.thresholds(cursor).get(run)
        if threshold is not None:
            self._thresholds[run] = threshold

    def forget(self, run: int, streams: Iterable[Stream]) -> None:
        """A run was deleted with its streams. Called from a job; batches of them that wait are refused."""
        self._thresholds.pop(run, None)
        self._gone.update(streams)

    def is_gone(self, stream: Stream) -> bool:
        """Whether its run was deleted since it was opened."""
        return stream in self._gone

    def remember(self, stream: Stream) -> None:
        """A stream was opened, perhaps under the keys of one that is gone. Called from a job."""
        self._gone.discard(stream)

    def close(self, timeout_s: float | None = None) -> bool:
        """Write everything that was accepted, then stop; False where that took longer than ``timeout_s``."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._cursor.close()
        return True

    def _refuse_if_closed(self) -> None:
        if self.failure:
            raise DatabaseBroken(f"the database has stopped working ({self.failure}): the server replaces itself soon")
        if self._is_closing:
            raise Busy("the server is stopping or replacing itself: send this again in a moment", retry_after_s=2.0)

    def _work(self) -> None:
        while True:
            taken = self._take()
            if taken is None:
                return
            if isinstance(taken, _Job):
                self._run_job(taken)
            else:
                self._commit_all(taken)

    def _take(self) -> "list[_Waiting] | _Job | None":
        """The next job, or the batches of the next commit; None when all is done and the store closes."""
        with self._changed:
            while not self._queue:
                if self._is_closing:
                    return None
                self._changed.wait()
            if isinstance(self._queue[0], _Job):
                return self._queue.popleft()  # type: ignore[return-value]
            self._linger()
            taken: list[_Waiting] = []
            num_bytes = 0
            for first in self._queue:
                if not isinstance(first, _Waiting):
                    break
                if taken and num_bytes + first.batch.memory_bytes > self._max_commit_bytes:
                    break
                num_bytes += first.batch.memory_bytes
                taken.append(first)
            del taken[well_filled([w.batch.num_token_rows for w in taken]) :]
            for _ in taken:
                self._queue.popleft()
            self._committing_since = taken[0].since
            return taken

    def _linger(self) -> None:
        deadline = time.monotonic() + self._linger_s
        while not self._is_closing and self._queue_bytes < self._max_commit_bytes:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or isinstance(self._queue[-1], _Job):  # who waits for a job should not wait for us too
                return
            self._changed.wait(left_s)

    def _run_job(self, job: _Job) -> None:
        try:
            if job.in_transaction:
                self._cursor.execute("begin")
            result = job.action(self._cursor)
            if job.in_transaction:
                self._cursor.execute("commit")
        except BaseException as error:  # noqa: BLE001 it belongs to who waits for the job
            self._roll_back(error)
            job.future.set_exception(disk_full(error) or error)
        else:
            self.write_error = None
            job.future.set_result(result)

    def _commit_all(self, taken: Sequence[_Waiting]) -> None:
        taken = self._still_known(taken)
        if not taken:
            return
        try:
            commit, duplicates = self._committed([w.batch for w in taken])
        except BaseException as error:  # noqa: BLE001 a batch must not be able to end the thread
            self._roll_back(error)
            if len(taken) > 1 and self.failure is None:
                for waiting in taken:  # singly: only the batch that is to blame should suffer
                    self._commit_all([waiting])
            else:
                self._let_go(taken)
                for waiting in taken:
                    waiting.future.set_exception(_for_sender(error))
            return
        self.write_error = None
        self._let_go(taken)
        self._on_commit(commit)
        for waiting, is_duplicate in zip(taken, duplicates, strict=True):
            waiting.future.set_result(is_duplicate)

    def _still_known(self, taken: Sequence[_Waiting]) -> Sequence[_Waiting]:
        """Without the batches whose run was deleted while they waited: their keys may be another run's by now."""
        gone = [w for w in taken if w.batch.stream in self._gone]
        self._let_go(gone)
        for waiting in gone:
            waiting.future.set_exception(streams.unknown(waiting.batch.stream.stream_id))
        return [w for w in taken if w.batch.stream not in self._gone] if gone else taken

    def _let_go(self, taken: Sequence[_Waiting]) -> None:
        with self._changed:
            self._queue_bytes -= sum(w.batch.memory_bytes for w in taken)
            self._num_waiting -= len(taken)
            self._committing_since = None
            if self._queue_bytes + self._turned_away_bytes <= self._max_queue_bytes:
                self._turned_away_bytes = 0

    def _committed(self, batches: Sequence[Batch]) -> tuple[Commit, list[bool]]:
        for attempt in range(MEMORY_RETRIES + 1):
            try:
                return self._commit_once(batches)
            except duckdb.OutOfMemoryException:
                # Somebody's query holds the memory, and gives it back soon.
                if attempt == MEMORY_RETRIES or len(batches) > 1:
                    raise
                self._cursor.execute("rollback")
                time.sleep(0.1 * 2**attempt)
        raise StorageError("unreachable")

    def _commit_once(self, batches: Sequence[Batch]) -> tuple[Commit, list[bool]]:
        started = time.perf_counter()
        self._cursor.execute("begin")
        new = rows.claim(self._cursor, batches)
        rows.insert_rows(self._cursor, [self._with_shares(b) for b in new], self._decimals)
        fixed = self._fix_baselines(new)
        self._cursor.execute("commit")
        self._thresholds.update(fixed)
        left = {id(b) for b in new}
        commit = Commit(
            num_batches=len(new),
            num_duplicates=len(batches) - len(new),
            num_rows=sum(b.num_rows for b in new),
            num_bytes=sum(b.num_bytes for b in new),
            seconds=time.perf_counter() - started,
            runs=frozenset(b.stream.run_id for b in new),
        )
        return commit, [id(b) not in left for b in batches]

    def _with_shares(self, batch: Batch) -> Batch:
        threshold = self._thresholds.get(batch.stream.run)
        return batch if threshold is None or not baseline.has_entropy(batch) else baseline.with_shares(batch, threshold)

    def _fix_baselines(self, batches: Sequence[Batch]) -> dict[int, int]:
        waiting = {b.stream.run for b in batches if b.stream.run not in self._thresholds and baseline.has_entropy(b)}
        found = {run: baseline.fix_if_due(self._cursor, run) for run in waiting}
        return {run: threshold for run, threshold in found.items() if threshold is not None}

    def _roll_back(self, error: BaseException) -> None:
        # The engine refuses everything from here on.
        if isinstance(error, (duckdb.FatalException, duckdb.InternalException)):
            self._fail(error)
            return
        if isinstance(error, duckdb.IOException | duckdb.TransactionException):  # in the file; in the log, by COMMIT
            self.write_error = str(error).splitlines()[0]
        try:
            self._cursor.execute("rollback")
        except duckdb.TransactionException:
            pass  # it had not begun, or COMMIT itself rolled it back
        except duckdb.Error as second:
            self._fail(second)

    def _fail(self, error: BaseException) -> None:
        self.failure = str(error).splitlines()[0]
        event(_log, logging.ERROR, "database_broken", message=self.failure)


def _for_sender(error: BaseException) -> BaseException:
    """What the sender of a batch is told: whether sending it again can help."""
    if isinstance(error, duckdb.FatalException):
        return DatabaseBroken(
            f"the database has stopped working ({str(error).splitlines()[0]}): the server replaces itself soon"
        )
    if (full := disk_full(error)) is not None:
        return full
    if isinstance(error, duckdb.OutOfMemoryException):
        return Busy(f"the server is out of memory: {error}", retry_after_s=5.0)
    if isinstance(error, duckdb.DataError):
        return MalformedBatch(f"the rows cannot be stored: {error}")
    if isinstance(error, duckdb.Error):
        return StorageError(f"the batch could not be written: {error}")
    return error
