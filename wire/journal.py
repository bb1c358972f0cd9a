"""The journal thread: runs what the probe left to do, checks and coalesces the rows, and writes numbered batches."""

import concurrent.futures.thread  # noqa: F401 - see below
import contextlib
import threading
import time
from collections.abc import Callable

import pyarrow as pa

from entrostat.wire.bounded_queue import ByteBoundedQueue, Item
from entrostat.wire.codec import Tables, check_table, encode, in_schema
from entrostat.wire.counters import Tally
from entrostat.wire.handover import Record
from entrostat.wire.notices import Notices, log
from entrostat.wire.outbox import Outbox
from entrostat.wire.tables import TABLES

# concurrent.futures.thread is imported above because pyarrow imports it at first use. At the end of a program, when the
# last steps are reduced, Python refuses that import ("can't register atexit after shutdown") and the step was lost.

MAX_BATCH_BYTES = 32 * 2**20
"""Rows of a batch before compression; a step begins another batch rather than to be part of two."""
MAX_STEP_BYTES = 60 * 2**20
"""A step of more is split: the rows of less are a body that a server takes, even where nothing compresses."""

_RESCUE_EVERY_S = 1.0
_FEW_WAITING = 2
_LONGER = 10
"""With more batches waiting than a few, rows linger so many times longer: a server takes one large batch far faster
than many small ones (``benchmarks/server_ingest.py``), and nobody waits for this one while others are before it."""


class Journal:
    """Turns the queue's items into batches in the outbox.

    Args:
        linger_s: how long the first rows of a batch wait for more.
        max_memory_bytes: what may wait in memory while the disk refuses; beyond it the queue fills and ``put`` drops.
        max_spool_bytes: above it token rows are left out of new batches.
    """

    def __init__(
        self,
        queue: ByteBoundedQueue,
        outbox: Outbox,
        tally: Tally,
        notices: Notices,
        linger_s: float,
        max_memory_bytes: int,
        max_spool_bytes: int,
    ) -> None:
        self._queue, self._outbox, self._tally, self._notices = queue, outbox, tally, notices
        self._linger_s, self._max_memory_bytes, self._max_spool_bytes = linger_s, max_memory_bytes, max_spool_bytes
        self._rows: dict[str, list[pa.Table]] = {}
        self._rows_bytes = 0
        self._unkept: list[Record] = []
        self._since: float | None = None
        self._num_taken = 0
        self._closing = threading.Event()
        self._hurry_to = 0
        self._written = threading.Condition()
        self._num_written = 0

    def run(self) -> None:
        """The thread. Ends after ``close``, when everything is in the outbox."""
        while not self._queue.is_finished:
            self._guarded(self._turn)
        self._guarded(self._finish)

    def close(self) -> None:
        """Take nothing more, write what is there, end."""
        self._closing.set()
        self._queue.close()

    def drain(self, deadline: float) -> bool:
        """Whether all items put before now, and all events, were in the outbox before ``deadline``."""
        target = self._hurry_to = self._queue.num_put
        self._queue.wake()
        with self._written:
            while self._num_written < target or self._notices.is_pending:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._written.wait(left_s)
        return True

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - logged, sent as an event; the thread must live on
            log.warning("entrostat: a batch could not be made; the next will be", exc_info=True)
            self._notices.warn(f"A batch could not be made: {type(error).__name__}: {error}", {})
            self._tally.add("failed_items")
            self._forget_rows()

    def _finish(self) -> None:
        self._rows.setdefault("event", []).extend(self._notices.take_repeats())
        self._write()
        self._outbox.rescue()
        if not self._outbox.memory_bytes:
            self._free_kept()

    def _turn(self) -> None:
        item = self._queue.get(self._patience_s())
        if item is not None:
            self._take(item)
        else:
            self._outbox.rescue()
        if self._since is None and self._notices.is_pending:
            self._since = time.monotonic()
        if self._is_due():
            self._write()
        if self._unkept and self._since is None and not self._outbox.memory_bytes:
            self._free_kept()
        self._wait_for_the_disk()

    def _patience_s(self) -> float | None:
        if self._since is not None:
            return max(0.0, self._since + self._linger_now_s - time.monotonic())
        return _RESCUE_EVERY_S if self._outbox.memory_bytes else None

    @property
    def _linger_now_s(self) -> float:
        return self._linger_s * (_LONGER if self._outbox.num_waiting > _FEW_WAITING else 1)

    def _is_due(self) -> bool:
        if self._since is None:
            return False
        in_a_hurry = self._num_taken <= self._hurry_to and not len(self._queue)
        return (
            in_a_hurry
            or self._rows_bytes >= MAX_BATCH_BYTES
            or time.monotonic() >= self._since + self._linger_now_s
            or (self._closing.is_set() and not len(self._queue))
        )

    def _take(self, item: Item) -> None:
        tables = self._reduced(item)
        nbytes = sum(table.nbytes for table in tables.values())
        if self._rows_bytes and self._rows_bytes + nbytes > MAX_BATCH_BYTES:
            # Between the batches that one would be split into, a kill could leave the first and no tail of the rest.
            self._guarded(self._write)
        self._num_taken += 1
        self._since = self._since or time.monotonic()
        for name, table in tables.items():
            self._rows.setdefault(name, []).append(table)
        self._rows_bytes += nbytes
        if not tables:
            item.free()
        elif item.record is not None:
            self._keep(tables, item.record)
        elif self._linger_s > 0:  # they outlive this process, should it be killed now
            self._outbox.note(tables)

    def _reduced(self, item: Item) -> Tables:
        """Its tables; none where it could not be reduced, which is said."""
        try:
            return {name: _as_agreed(name, table) for name, table in item.reduce().items()}
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the thread; it is sent as an event
            message = f"A {item.what} could not be recorded: {type(error).__name__}: {error}"
            self._notices.warn(message, {"what": item.what, "error": type(error).__name__})
            self._tally.add("failed_items")
            return {}
        finally:
            self._queue.free(item)

    def _keep(self, tables: Tables, record: Record) -> None:
        """The step goes from where the training thread left it to the batch's tail, or stays there for the batch."""
        if self._outbox.note(tables, record.number):
            record.free()
            return
        with contextlib.suppress(OSError):
            record.becomes(self._outbox.next_seq)
        self._unkept.append(record)

    def _free_kept(self) -> None:
        """Every batch is on disk, or the server has it."""
        for record in self._unkept:
            record.free()
        self._unkept.clear()

    def _write(self) -> None:
        tables = {name: pa.concat_tables(parts) for name, parts in self._rows.items() if parts}
        self._leave_out_tokens(tables)
        if events := self._notices.take():
            tables["event"] = pa.concat_tables([*([tables["event"]] if "event" in tables else []), *events])
        for part in _split(tables):
            self._outbox.add(encode(part))
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._rows, self._rows_bytes, self._since = {}, 0, None
        with self._written:
            self._num_written = self._num_taken
            self._written.notify_all()

    def _leave_out_tokens(self, tables: dict[str, pa.Table]) -> None:
        if "token" not in tables or self._outbox.num_bytes <= self._max_spool_bytes:
            return
        tokens = tables.pop("token")
        self._notices.lost("spool_full", token_rows=tokens.num_rows, bytes=tokens.nbytes)
        self._notices.say_once(
            "spool",
            f"entrostat: more than {self._max_spool_bytes} bytes wait in {self._outbox.stream.path}. Until the server "
            "takes them, token rows are left out; step values are kept.",
        )
        self._tally.add("dropped_token_rows", tokens.num_rows)

    def _wait_for_the_disk(self) -> None:
        while self._outbox.memory_bytes > self._max_memory_bytes and not self._closing.wait(_RESCUE_EVERY_S):
            self._outbox.rescue()


def _as_agreed(name: str, table: pa.Table) -> pa.Table:
    """``table`` as the server will check it, so that one bad item never costs the batch it is coalesced into."""
    if name not in TABLES:
        raise ValueError(f"unknown table {name!r}: the tables are {sorted(TABLES)}")
    return check_table(name, in_schema(table, TABLES[name]))


def _split(tables: dict[str, pa.Table]) -> list[dict[str, pa.Table]]:
    """One batch, or of a step of more than ``MAX_STEP_BYTES`` several: tokens first, with the last of them the rest."""
    rest = {name: table for name, table in tables.items() if name != "token" and table.num_rows}
    tokens = tables.get("token")
    if tokens is None or not tokens.num_rows:
        return [rest] if rest else []
    num_parts = -(-tokens.nbytes // MAX_STEP_BYTES)
    num_rows = -(-tokens.num_rows // num_parts)
    parts = [{"token": tokens.slice(start, num_rows)} for start in range(0, tokens.num_rows, num_rows)]
    parts[-1] |= rest
    return parts
