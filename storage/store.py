"""The store: what the server knows of the database. Chosen by URL; today ``duckdb:///path``."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import duckdb

from entrostat.storage import audit, desired, removals, runs, series, server_events, streams, views, watched
from entrostat.storage.analysis.floor_forecast import FLOOR
from entrostat.storage.analysis.run import analysis
from entrostat.storage.backups import Backups
from entrostat.storage.control_book import ControlBook
from entrostat.storage.database import Database, Opening, path_of
from entrostat.storage.disk import Disk
from entrostat.storage.exports.transfers import Transfers
from entrostat.storage.integrity import Report, check
from entrostat.storage.query import QueryPool
from entrostat.storage.retention import Retention
from entrostat.storage.rows import Batch
from entrostat.storage.rule_book import RuleBook
from entrostat.storage.running_query import Answer
from entrostat.storage.schema import SCHEMA_VERSION
from entrostat.storage.state import StoreState
from entrostat.storage.streams import Reserved, Stream, utc_now
from entrostat.storage.thresholds import ThresholdKeeper
from entrostat.storage.watched import Losses, WatchedRun
from entrostat.storage.writer import Commit, Writer
from entrostat.wire.codec import Tables
from entrostat.wire.errors import NotFound
from entrostat.wire.messages import DesiredState, StreamOpen, StreamOpened, Thresholds

_Result = TypeVar("_Result")

LIVE_RUNS_LOOKED_AT = 200
"""Live runs are looked for among so many newest ones."""
WATCHED_S = 6 * 3600.0
"""A run that fell silent is watched for so long after its last batch."""
_NEVER = datetime.min.replace(tzinfo=UTC)


class Store:
    """One open store. All methods may be called from any thread; ``close`` last, or use it as a context manager.

    Args:
        url: ``duckdb:///absolute/path``, ``duckdb:relative/path`` or ``duckdb::memory:``.
        decimals: floats of token rows are rounded to so many places; None keeps them whole.
        linger_s, max_commit_bytes, max_queue_bytes: see ``Writer``.
        memory_limit_mb, num_threads, max_temp_mb: see ``Database``.
        max_queries, query_timeout_s, max_result_bytes: see ``QueryPool``.
        min_free_bytes: see ``Disk``.

    Raises:
        StorageError: the database cannot be opened.
    """

    def __init__(
        self,
        url: str,
        *,
        decimals: int | None = 4,
        linger_s: float = 0.0,
        max_commit_bytes: int = 64 * 2**20,
        max_queue_bytes: int = 512 * 2**20,
        memory_limit_mb: int = 4096,
        num_threads: int | None = None,
        max_temp_mb: int = 8192,
        max_queries: int = 2,
        query_timeout_s: float = 10.0,
        max_result_bytes: int = 64 * 2**20,
        min_free_bytes: int = 0,
    ) -> None:
        self._database = Database(path_of(url), memory_limit_mb, num_threads, max_temp_mb)
        self._listeners: list[Callable[[Commit], None]] = []
        with self._database.reading() as cursor:
            self._streams = streams.known_streams(cursor)
            self._desired = desired.latest(cursor)
        self._versions: dict[str, int] = {}
        self._lock = threading.Lock()
        self._summaries: dict[str, tuple[int, dict[str, Any]]] = {}
        self._disk, self._max_queue_bytes = Disk(self._database.path, min_free_bytes), max_queue_bytes
        self._writer = Writer(
            self._database, decimals, linger_s, max_commit_bytes, max_queue_bytes, self._after_commit, self._disk
        )
        self._queries = QueryPool(self._database, max_queries, query_timeout_s, max_result_bytes, memory_limit_mb)
        self.rules = RuleBook(self._database, self._writer, self._remember)
        """The rules, and what they have done."""
        self.control = ControlBook(self._database, self._writer, self._remember)
        """What persons asked for, and what came of it."""
        self.backups = Backups(self._database, self._writer)
        """Copies of the database."""
        self.retention = Retention(self._database, self._writer, self._delete_old_run, self._touch)
        """What removes old rows and runs."""
        self._thresholds = ThresholdKeeper(self._database, self.desired)
        self._reserved = Reserved()
        self.transfers = Transfers(self._database, self._writer, self._reserved, self._imported)
        """Runs out as files, and back."""

    def open_stream(self, stream_id: str, opening: StreamOpen) -> StreamOpened:
        """Make a stream known, and its run where that is new. Repeating it changes nothing."""
        stream = self._streams.get(stream_id) or self._writer.do(lambda cursor: self._open(cursor, stream_id, opening))
        with self._lock:
            if not self._writer.is_gone(stream):  # its run may have been deleted just now
                self._streams[stream_id] = stream
        self._touch(stream.run_id)
        self._thresholds.look_at(stream.run_id, anew=True)
        known = self.thresholds(stream.run_id)
        is_superseded = known is not None and opening.resume_step is not None and known.step > opening.resume_step
        return StreamOpened(
            run_id=stream.run_id, desired=self.desired(stream.run_id), thresholds=None if is_superseded else known
        )

    def _open(self, cursor: duckdb.DuckDBPyConnection, stream_id: str, opening: StreamOpen) -> Stream:
        # Two requests may have found it missing; the writer's thread sees the first one's row.
        known = streams.known_stream(cursor, stream_id)
        opened = known or streams.open_stream(cursor, stream_id, opening, self._reserved)
        self._writer.remember(opened)
        return opened

    def add_batch(self, stream_id: str, seq: int, tables: Tables, num_bytes: int) -> "Future[bool]":
        """Hand over a checked batch. The future gives, once it is on disk, whether it was held already.

        Args:
            num_bytes: size of its body on the wire.

        Raises:
            NotFound: the stream was never opened here.
            Busy: the queue is full.
        """
        return self._writer.add(Batch(self.stream(stream_id), seq, tables, num_bytes, utc_now()))

    def stream(self, stream_id: str) -> Stream:
        """A stream that was opened. Raises NotFound."""
        stream = self._streams.get(stream_id)
        if stream is None:
            raise streams.unknown(stream_id)
        return stream

    def desired_of(self, run_id: str) -> DesiredState:
        """What should be on in a run that someone names. Raises NotFound."""
        if run_id not in self._desired:
            with self._database.reading() as cursor:
                runs.key_of(cursor, run_id)
        return self.desired(run_id)

    def desired(self, run_id: str) -> DesiredState:
        """What should be on in a run that is known: version 0 where nothing was ever asked for. Asks no database."""
        return self._desired.get(run_id, DesiredState())

    def thresholds(self, run_id: str) -> Thresholds | None:
        """Scores of the last complete step, where something asks for a selection over it. Asks no database."""
        return self._thresholds.of(run_id)

    def change_desired(
        self, run_id: str, change: Callable[[DesiredState], DesiredState], expected_version: int | None = None
    ) -> DesiredState:
        """Read, ``change`` (see ``wire.intent``) and write a run's desired state as one; an equal state is not written.

        Raises:
            NotFound: no such run.
            Conflict: ``expected_version`` is given and is not the newest.
            Whatever ``change`` raises: nothing is written then.
        """

        def write(cursor: duckdb.DuckDBPyConnection) -> DesiredState:
            key, held = desired.held(cursor, run_id, expected_version)
            changed = change(held)
            return held if changed == held else desired.append(cursor, key, changed, held.version + 1)

        written = self._writer.do(write)
        self._remember(run_id)
        return written

    def _remember(self, run_id: str) -> None:
        """What should be on in a run was written."""
        # Read, not handed over: a run that was deleted meanwhile, and begun anew, would keep what the old one had on.
        with self._lock, self._database.reading() as cursor:
            if (newest := desired.latest(cursor).get(run_id)) is not None:
                self._desired[run_id] = newest
            else:
                self._desired.pop(run_id, None)
        self._thresholds.look_at(run_id)

    def runs(self, search: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Summaries of the runs, newest first. ``search`` is part of a name, tag or note."""
        versions = dict(self._versions)  # before the snapshot: a summary may then be newer than its version, not older
        with self._database.reading() as cursor:
            return self._summaries_of(cursor, runs.names(cursor, search, limit), versions)

    def run(self, run_id: str) -> dict[str, Any]:
        """A run's summary with its settings, streams, baseline and the names of its signals. Raises NotFound."""
        versions = dict(self._versions)
        with self._database.reading() as cursor:
            runs.key_of(cursor, run_id)
            return self._summaries_of(cursor, [run_id], versions)[0] | runs.details(cursor, run_id)

    def status(self, run_id: str) -> str:
        """``live``, ``ended`` or ``silent``. Raises NotFound."""
        versions = dict(self._versions)
        with self._database.reading() as cursor:
            runs.key_of(cursor, run_id)
            return str(self._summaries_of(cursor, [run_id], versions)[0]["status"])

    def watched_runs(self, signals: tuple[str, ...], limit: int) -> list[WatchedRun]:
        """Runs that have not ended and sent something within ``WATCHED_S``, newest first, at most ``limit``.

        Args:
            signals: whose newest values are wanted.
        """
        since = datetime.now(UTC) - timedelta(seconds=WATCHED_S)
        shown = [
            run for run in self.runs(limit=LIVE_RUNS_LOOKED_AT)
            if run["status"] == "live" or (run["status"] == "silent" and _moment(run["last_seen"] or "") > since)
        ][:limit]  # fmt: skip
        last_steps = {run["run"]: run["last_step"] for run in shown if run["last_step"] is not None}
        with self._database.reading() as cursor:
            lost = watched.losses(cursor, [run["run"] for run in shown])
            values = runs.latest(cursor, last_steps, signals) if last_steps else {}
        return [_watched(run, lost[run["run"]], values.get(run["run"], {})) for run in shown]

    def _summaries_of(
        self, cursor: duckdb.DuckDBPyConnection, run_ids: list[str], versions: dict[str, int]
    ) -> list[dict[str, Any]]:
        """Those of the runs that changed since they were last asked for are made anew."""
        held = {run_id: self._summaries.get(run_id) for run_id in run_ids}
        stale = [run_id for run_id, kept in held.items() if kept is None or kept[0] != versions.get(run_id, 0)]
        for run_id, made in (runs.summaries(cursor, stale) if stale else {}).items():
            self._summaries[run_id] = held[run_id] = (versions.get(run_id, 0), made)
        return [runs.with_status(kept[1]) for kept in held.values() if kept is not None]

    def update_run(
        self,
        run_id: str,
        tags: dict[str, str] | None = None,
        notes: str | None = None,
        by: audit.By = audit.NOBODY,
    ) -> None:
        """Replace a run's tags or notes; None leaves them. Raises NotFound."""

        def write(cursor: duckdb.DuckDBPyConnection) -> None:
            runs.update(cursor, run_id, tags, notes)
            changed = {key: value for key, value in (("tags", tags), ("notes", notes)) if value is not None}
            audit.append(cursor, by, "run_changed", run_id, None, changed)

        self._writer.do(write)
        self._touch(run_id)

    def delete_run(
        self,
        run_id: str,
        by: audit.By = audit.NOBODY,
        reason: str = "deleted on request",
        only_if: Callable[[duckdb.DuckDBPyConnection], bool] = lambda _: True,
    ) -> None:
        """Remove a run and everything of it but its audit; that it was there stays on record, with ``reason``.

        Args:
            only_if: asked in the transaction that removes.

        Raises:
            NotFound: no such run, or not one that may be removed.
        """

        def remove(cursor: duckdb.DuckDBPyConnection) -> None:
            key = runs.key_of(cursor, run_id)
            if not only_if(cursor):
                raise NotFound(f"the run {run_id!r} is not to be removed any more")
            told = {"created": runs.created(cursor, key), "last_step": runs.last_step(cursor, key), "reason": reason}
            removals.run_removed(cursor, key, run_id, reason)
            runs.delete(cursor, key)
            audit.append(cursor, by, "run_deleted", run_id, None, told)
            with self._lock:
                gone = {k: s for k, s in self._streams.items() if s.run == key}
                self._streams = {k: s for k, s in self._streams.items() if k not in gone}
                self._writer.forget(key, gone.values())
                self._summaries.pop(run_id, None)
                self._desired.pop(run_id, None)

        self._writer.do(remove)
        self._thresholds.look_at(run_id)
        self._touch(run_id)

    def _delete_old_run(self, run_id: str, reason: str, only_if: Callable[[duckdb.DuckDBPyConnection], bool]) -> None:
        self.delete_run(run_id, audit.By(None, "retention", None), reason, only_if)

    def token_used(self, name: str, scopes: frozenset[str], by: audit.By) -> None:
        """Write down that a token is in use."""
        self._writer.do(lambda cursor: audit.append(cursor, by, "token_used", None, name, {"scopes": sorted(scopes)}))

    def events(self, run_id: str, limit: int = 500) -> list[dict[str, Any]]:
        """The run's newest events, oldest first. Raises NotFound."""
        with self._database.reading() as cursor:
            return runs.events(cursor, run_id, limit)

    def add_event(
        self, run_id: str, step: int | None, kind: str, message: str, detail: dict[str, Any] | None = None
    ) -> None:
        """Write an event that the server makes itself. Raises NotFound."""
        self._writer.do(
            lambda cursor: server_events.append(cursor, runs.key_of(cursor, run_id), step, kind, message, detail)
        )
        self._touch(run_id)

    def series(
        self, run_ids: list[str], names: list[str], from_step: int | None, to_step: int | None, points: int
    ) -> list[dict[str, Any]]:
        """Signals over steps, thinned to about ``points`` buckets with mean, minimum and maximum."""
        with self._database.reading() as cursor:
            return [
                one for run_id in run_ids for one in series.series(cursor, run_id, names, from_step, to_step, points)
            ]

    def histogram(
        self, run_id: str, name: str, from_step: int | None, to_step: int | None, points: int
    ) -> dict[str, Any]:
        """A histogram over steps, thinned by adding up neighbouring steps. Raises NotFound for an unknown name."""
        with self._database.reading() as cursor:
            return series.histogram(cursor, run_id, name, from_step, to_step, points)

    def analysis(self, run_id: str, floor: float = FLOOR, reward: str | None = None) -> dict[str, Any]:
        """What can be said of the whole run: stage, entropy law, forecast of the floor (nats). Raises NotFound."""
        with self._database.reading() as cursor:
            return analysis(cursor, run_id, floor, reward)

    def query(self, sql: str, max_rows: int) -> Answer:
        """A person's SELECT over the public views.

        Raises:
            QueryForbidden, QueryTimeout, QueryBusy, QueryError: see ``QueryPool.run``.
        """
        return self._queries.run(sql, max_rows)

    def schema(self) -> list[dict[str, Any]]:
        """The public views with the type and meaning of every column."""
        with self._database.reading() as cursor:
            return views.described(cursor)

    def check(self) -> Report:
        """Read everything there is and hold the ledger against the rows; batches go on coming in."""
        cursor = self._database.cursor()
        try:
            return check(cursor)
        finally:
            cursor.close()

    def write(self, action: Callable[[duckdb.DuckDBPyConnection], _Result]) -> _Result:
        """Run ``action`` in a transaction of its own on the writer's thread; for modules of this folder."""
        return self._writer.do(action)

    @property
    def queue_bytes(self) -> int:
        """Memory of the batches that wait or are being committed."""
        return self._writer.queue_bytes

    @property
    def failure(self) -> str | None:
        """Why nothing can be written any more; None while all is well."""
        return self._writer.failure or self._database.failure

    def runaway_query(self, after_s: float) -> str | None:
        """Which person's query the engine does not let go of, in a sentence: see ``QueryPool.runaway``."""
        return self._queries.runaway(after_s)

    @property
    def num_queries(self) -> int:
        """People's queries that the engine has not let go of."""
        return self._queries.num_running

    def settle(self, timeout_s: float) -> bool:
        """Write what was accepted and take no more; whether that was done in time. For who ends the process then."""
        return self._writer.close(timeout_s)

    def state(self) -> StoreState:
        """What can be said of the store now, without asking the database."""
        writer, disk = self._writer, self._disk
        return StoreState(
            failure=self.failure,
            write_error=writer.write_error,
            disk_problem=disk.problem(writer.queue_bytes),
            is_queue_full=writer.is_full,
            queue_bytes=writer.queue_bytes,
            max_queue_bytes=self._max_queue_bytes,
            num_waiting=writer.num_waiting,
            oldest_waiting_s=writer.oldest_waiting_s,
            database_bytes=disk.database_bytes,
            log_bytes=disk.log_bytes,
            free_bytes=disk.free_bytes,
            min_free_bytes=disk.min_free_bytes,
        )

    @property
    def opening(self) -> Opening:
        """How the database was found when it was opened."""
        return self._database.opening

    @property
    def schema_version(self) -> int:
        """Version of the database's tables."""
        return SCHEMA_VERSION

    def try_write(self) -> None:
        """Write nothing new, to see whether writing works; ``state`` knows afterwards. Raises whatever goes wrong."""
        self._writer.do(lambda cursor: cursor.execute("update raw.meta set schema_version = schema_version"))

    def close(self) -> None:
        """Write what was accepted and close the file."""
        self.transfers.close()
        self._writer.close()
        self._thresholds.close()
        self._queries.close()
        self._database.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _imported(self, run_id: str, known: list[Stream], wanted: DesiredState | None) -> None:
        with self._lock:
            self._streams = self._streams | {stream.stream_id: stream for stream in known}
            if wanted is not None:
                self._desired[run_id] = wanted
        self._touch(run_id)
        self._thresholds.look_at(run_id, anew=True)

    def _after_commit(self, commit: Commit) -> None:
        for run_id in commit.runs:
            self._touch(run_id)
            self._thresholds.look_at(run_id)
        for listener in self._listeners:
            listener(commit)

    def on_commit(self, listener: Callable[[Commit], None]) -> None:
        """Call ``listener`` after each commit, on the writer's thread: it must be quick and must not raise."""
        self._listeners.append(listener)

    def _touch(self, run_id: str) -> None:
        with self._lock:
            self._versions[run_id] = self._versions.get(run_id, 0) + 1


def _watched(run: dict[str, Any], lost: Losses, values: dict[str, float]) -> WatchedRun:
    seen = run["last_seen"]
    return WatchedRun(run["run"], run["status"] == "live", seen and _moment(seen), run["last_step"], values, lost)


def _moment(iso: str) -> datetime:
    return datetime.fromisoformat(iso) if iso else _NEVER
