"""Removing what is old, or more than there may be: token and sequence rows first, then whole runs, oldest first.

A run that is in use is never touched. Rows go in pieces, each a transaction of the writer's thread with its record in
``raw.removal``, so that batches get in between; a server that is killed in the middle goes on with the rest later.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import duckdb

from entrostat.storage import removals, schema, server_events
from entrostat.storage.database import Database
from entrostat.storage.streams import utc_now
from entrostat.storage.writer import Writer
from entrostat.wire.errors import NotFound
from entrostat.wire.logs import event

_log = logging.getLogger(__name__)

REST = timedelta(days=1)
"""A run that has not ended, and was heard of within so long, is in use: a step may take hours."""
PIECE_ROWS = (50_000, 1_000_000)
"""Fewest and most rows of a piece: between them, as many as keep the writer busy for about ``PIECE_S``."""
PIECE_S = 0.5
"""So long batches should wait for a piece."""
EACH_RESPONSE = ("token", "sequence")
"""Tables with a row for each token or response: nearly all of a database."""
_BY_STEP = (*EACH_RESPONSE, "histogram", "cell", "profile", "step_metric")


@dataclass(frozen=True, slots=True)
class Policy:
    """What is kept; 0 keeps everything.

    Args:
        keep_token_days: token and sequence rows, after the run was last heard of.
        keep_run_days: whole runs, likewise.
        max_bytes: of the database in use.

    Raises:
        ValueError: a number is below 0, or none.
    """

    keep_token_days: float = 0.0
    keep_run_days: float = 0.0
    max_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("keep_token_days", "keep_run_days", "max_bytes"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value}: give 0 (no limit) or more")

    @property
    def keeps_everything(self) -> bool:
        """Whether there is nothing to do, ever."""
        return not (self.keep_token_days or self.keep_run_days or self.max_bytes)


@dataclass(frozen=True, slots=True)
class _Run:
    key: int
    run_id: str
    last_heard: datetime
    has_rows: bool


class Retention:
    """Applies a policy to one database.

    Args:
        delete_run: removes a run, for a reason, if something still holds in the transaction that removes it.
        changed: called with the name of a run whose rows were removed.
        now: the time, UTC, without a zone.
    """

    def __init__(
        self,
        database: Database,
        writer: Writer,
        delete_run: Callable[[str, str, Callable[[duckdb.DuckDBPyConnection], bool]], None],
        changed: Callable[[str], None],
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database, self._writer = database, writer
        self._delete_run, self._changed, self._now = delete_run, changed, now
        self._is_stopping = threading.Event()
        self._piece_rows = PIECE_ROWS[0]

    def stop(self) -> None:
        """Let an ``apply`` on another thread end after its present piece."""
        self._is_stopping.set()

    def apply(self, policy: Policy) -> None:
        """Remove what the policy does not keep; returns when it is done, or was stopped."""
        now = self._now()
        for run in self._older(policy.keep_run_days, now):
            self._remove_run(run, f"runs are kept {policy.keep_run_days:g} days")
        for run in self._older(policy.keep_token_days, now):
            if run.has_rows:
                self._remove_rows(run, f"token rows are kept {policy.keep_token_days:g} days")
        if policy.max_bytes:
            self._make_smaller(policy.max_bytes, now)

    def used_bytes(self) -> int:
        """Bytes of the file that hold data; the rest of it is free and used again."""
        return int(self._database.rows("select used_blocks * block_size from pragma_database_size()")[0][0])

    def _older(self, days: float, now: datetime) -> list[_Run]:
        return [run for run in self._at_rest(now) if days and run.last_heard < now - timedelta(days=days)]

    def _make_smaller(self, max_bytes: int, now: datetime) -> None:
        reason = f"the database may have {max_bytes / 2**20:,.0f} MiB"
        runs = self._at_rest(now)
        work = [(self._remove_rows, run) for run in runs if run.has_rows] + [(self._remove_run, run) for run in runs]
        for remove, run in work:
            if self._is_stopping.is_set() or self._used_after_checkpoint() <= max_bytes:
                return
            remove(run, reason)
        if (used := self._used_after_checkpoint()) > max_bytes:
            message = f"the database has {used // 2**20} MiB, over its limit, and all that is left is in use"
            event(_log, logging.WARNING, "over_its_limit", message=message)

    def _used_after_checkpoint(self) -> int:
        self._checkpoint()  # only then are removed rows free blocks
        return self.used_bytes()

    def _checkpoint(self) -> None:
        self._writer.hold_still(lambda cursor: cursor.execute("checkpoint"))

    def _at_rest(self, now: datetime) -> list[_Run]:
        """The runs that are not in use, the one that was heard of longest ago first."""
        return [_Run(*row) for row in self._database.rows(_AT_REST, [now - REST])]

    def _remove_run(self, run: _Run, reason: str) -> None:
        for what in _BY_STEP:
            self._remove_pieces(run, what, reason)
        if self._is_stopping.is_set():
            return
        try:
            self._delete_run(run.run_id, reason, lambda cursor: _is_at_rest(cursor, run))
        except NotFound:  # a person was quicker, or it goes on
            return
        event(_log, logging.WARNING, "removed", run=run.run_id, message=f"the whole run: {reason}")

    def _remove_rows(self, run: _Run, reason: str) -> None:
        num_rows = sum(self._remove_pieces(run, what, reason) for what in EACH_RESPONSE)
        if not num_rows:
            return
        message = f"removed {num_rows} token and sequence rows: {reason}"
        self._writer.do(lambda cursor: _tell(cursor, run, message))
        self._changed(run.run_id)
        event(_log, logging.WARNING, "removed", run=run.run_id, message=message)

    def _remove_pieces(self, run: _Run, what: str, reason: str) -> int:
        table = schema.ROW_TABLES[what].name
        left: Sequence[Counted] = self._database.rows(
            f"select stream, step, count(*) from raw.{table} where run = ? group by stream, step order by stream, step",
            [run.key],
        )
        num_rows = 0
        while left and not self._is_stopping.is_set():
            stream, steps, taken = first_piece(left, self._piece_rows)
            left = left[taken:]
            num_rows += self._in_time(functools.partial(self._remove_piece, run, what, stream, steps, reason))
        return num_rows

    def _remove_piece(self, run: _Run, what: str, stream: int, steps: tuple[int, int], reason: str) -> int:
        num_rows = self._writer.do(_removing(run, what, stream, steps, reason))
        # At once: what is left of the blocks is rewritten then, and all of it together would take as long as all rows.
        self._checkpoint()
        return num_rows

    def _in_time(self, remove: Callable[[], int]) -> int:
        """``remove`` a piece, and make the next one smaller or larger by what it took."""
        began = time.perf_counter()
        num_rows = remove()
        factor = 0.5 if time.perf_counter() - began > PIECE_S else 1.5
        self._piece_rows = int(min(max(self._piece_rows * factor, PIECE_ROWS[0]), PIECE_ROWS[1]))
        return num_rows


_HEARD = """
select r.run, r.run_id, greatest(r.created, s.opened, b.received) as last_heard, s.opened
from raw.run r
left join (select run, max(opened) as opened from raw.stream group by run) s on s.run = r.run
left join (select run, max(received) as received from raw.batch group by run) b on b.run = r.run
"""
_AT_REST = f"""
select h.run, h.run_id, h.last_heard,
    exists (select 1 from raw.token_row t where t.run = h.run)
        or exists (select 1 from raw.sequence_row t where t.run = h.run)
from ({_HEARD}) h
left join (
    select run, max(received) as ended from raw.event_row
    where kind = 'run_ended' and stream != {schema.SERVER_STREAM} group by run
) e on e.run = h.run
where h.last_heard < ? or e.ended >= h.opened
order by h.last_heard, h.run
"""


Counted = tuple[int, int, int]
"""A stream, a step, and the rows that they have."""


def first_piece(counted: Sequence[Counted], num_rows: int) -> tuple[int, tuple[int, int], int]:
    """The first rows to go: steps of one stream that follow each other, about ``num_rows`` rows, at least a step.

    Returns:
        The stream, its first and last step, and how many entries of ``counted`` that is.
    """
    stream, first, size = counted[0]
    last, taken = first, 1
    for other, step, count in counted[1:]:
        if other != stream or size + count > num_rows:
            break
        last, size, taken = step, size + count, taken + 1
    return stream, (first, last), taken


def _removing(
    run: _Run, what: str, stream: int, steps: tuple[int, int], reason: str
) -> Callable[[duckdb.DuckDBPyConnection], int]:
    def remove(cursor: duckdb.DuckDBPyConnection) -> int:
        if not _is_at_rest(cursor, run):
            return 0
        num_rows = cursor.execute(
            f"delete from raw.{schema.ROW_TABLES[what].name} where run = ? and stream = ? and step between ? and ?",
            [run.key, stream, *steps],
        ).fetchall()[0][0]
        if num_rows:
            removals.rows_removed(cursor, (run.key, run.run_id), stream, what, num_rows, steps, reason)
        return int(num_rows)

    return remove


def _tell(cursor: duckdb.DuckDBPyConnection, run: _Run, message: str) -> None:
    if _is_at_rest(cursor, run):
        server_events.append(cursor, run.key, None, "rows_removed", message)


def _is_at_rest(cursor: duckdb.DuckDBPyConnection, run: _Run) -> bool:
    """Whether it is as it was found: not deleted (its key may be another run's now), and not heard of since."""
    found = cursor.execute(f"select run_id, last_heard from ({_HEARD}) where run = ?", [run.key]).fetchall()
    return found == [(run.run_id, run.last_heard)]
