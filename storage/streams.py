"""Who sends: opening a stream, naming its run, and what a resumed session supersedes. Runs inside the writer."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb
from pydantic_core import to_json

from entrostat.storage import schema
from entrostat.storage.errors import StorageError
from entrostat.wire.errors import NotFound
from entrostat.wire.messages import StreamOpen

MAX_RUN_ID_CHARS = 128


@dataclass(frozen=True, slots=True)
class Stream:
    """What the writer has to know of a stream."""

    stream: int
    stream_id: str
    run: int
    run_id: str


@dataclass(slots=True)
class Reserved:
    """The highest surrogate keys that imports under way were given: their rows cannot be seen yet. Writer's thread."""

    run: int = 0
    stream: int = 0


def reserve(cursor: duckdb.DuckDBPyConnection, reserved: Reserved, num_streams: int) -> tuple[int, int]:
    """The keys of a run and of its first stream, of ``num_streams`` in a row; nobody else will be given them."""
    run, first = _next_key(cursor, "run", reserved.run), _next_key(cursor, "stream", reserved.stream)
    reserved.run, reserved.stream = run, first + num_streams - 1
    return run, first


def utc_now() -> datetime:
    """Now, UTC, without a zone: as every TIMESTAMP of the database."""
    return datetime.now(UTC).replace(tzinfo=None)


def utc_naive(moment: datetime) -> datetime:
    """``moment`` as the database keeps it; one without a zone is taken to be UTC."""
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def known_streams(cursor: duckdb.DuckDBPyConnection) -> dict[str, Stream]:
    """Every stream of the database by its id."""
    rows = cursor.execute("select stream, stream_id, run, run_id from raw.stream").fetchall()
    return {row[1]: Stream(*row) for row in rows}


def known_stream(cursor: duckdb.DuckDBPyConnection, stream_id: str) -> Stream | None:
    """The stream, where it was opened before."""
    rows = cursor.execute(
        "select stream, stream_id, run, run_id from raw.stream where stream_id = ?", [stream_id]
    ).fetchall()
    return Stream(*rows[0]) if rows else None


def unknown(stream_id: str) -> NotFound:
    """The error of a stream that was never opened here, or whose run was deleted."""
    return NotFound(f"no stream {stream_id}: open it with PUT /v1/streams/{stream_id}")


def open_stream(cursor: duckdb.DuckDBPyConnection, stream_id: str, opening: StreamOpen, reserved: Reserved) -> Stream:
    """Write the stream, and its run where that is new; the caller knows that the stream is not there yet.

    The run is, in this order: the one that this session was given before; the one it names, where it resumes, is
    another producer, or was started before the session that resumed from it; a new one.
    """
    run = _run_of_session(cursor, opening) or _run_to_join(cursor, opening) or _new_run(cursor, opening, reserved)
    run_key, run_id = run
    if opening.resume_step is not None:
        _supersede(cursor, run_key, opening)
    stream = _next_key(cursor, "stream", reserved.stream)
    _insert(cursor, schema.STREAM, _stream_values(stream, stream_id, run_key, run_id, opening) | {
        "valid_to_step": _already_superseded_at(cursor, run_key, opening),
    })  # fmt: skip
    if opening.producer == "trainer":
        cursor.execute("update raw.run set world_size = ? where run = ?", [opening.world_size, run_key])
        _tell_of_trainer(cursor, run_key, opening)
    return Stream(stream, stream_id, run_key, run_id)


def _run_of_session(cursor: duckdb.DuckDBPyConnection, opening: StreamOpen) -> tuple[int, str] | None:
    rows = cursor.execute(
        "select run, run_id from raw.stream where session_id = ? and requested_run_id = ? limit 1",
        [opening.session_id, opening.run_id],
    ).fetchall()
    return (rows[0][0], rows[0][1]) if rows else None


def _run_to_join(cursor: duckdb.DuckDBPyConnection, opening: StreamOpen) -> tuple[int, str] | None:
    found = cursor.execute("select run, run_id from raw.run where run_id = ?", [opening.run_id]).fetchall()
    if not found:
        return None
    run = (found[0][0], found[0][1])
    others = cursor.execute(
        "select resume_step, started from raw.stream where run = ? and producer = ?", [run[0], opening.producer]
    ).fetchall()
    # A spool that is pushed after the resumed session began: its session is the one that was resumed from.
    started = utc_naive(opening.started)
    is_earlier_part = all(resume is not None and started < other for resume, other in others)
    return run if opening.resume_step is not None or is_earlier_part else None


def free_run_id(cursor: duckdb.DuckDBPyConnection, wanted: str) -> str:
    """``wanted``, or ``wanted-2`` and so on where there is a run of that name."""
    taken = {row[0] for row in cursor.execute("select run_id from raw.run").fetchall()}
    run_id, number = wanted, 1
    while run_id in taken:
        number += 1
        suffix = f"-{number}"
        run_id = wanted[: MAX_RUN_ID_CHARS - len(suffix)] + suffix
    return run_id


def _new_run(cursor: duckdb.DuckDBPyConnection, opening: StreamOpen, reserved: Reserved) -> tuple[int, str]:
    run_id = free_run_id(cursor, opening.run_id)
    run = _next_key(cursor, "run", reserved.run)
    _insert(cursor, schema.RUN, {
        "run": run, "run_id": run_id, "created": utc_now(), "world_size": opening.world_size,
        "tags": _json(opening.tags), "notes": "", **_about(opening),
    })  # fmt: skip
    return run, run_id


def _tell_of_trainer(cursor: duckdb.DuckDBPyConnection, run: int, opening: StreamOpen) -> None:
    """Where a rollout engine was there before the trainer, the run was told of the engine's settings until now."""
    count = "select count(*) from raw.stream where run = ? and producer = 'trainer'"
    if cursor.execute(count, [run]).fetchall() != [(1,)]:
        return
    tags = cursor.execute("select tags from raw.run where run = ?", [run]).fetchall()[0][0]
    values = _about(opening) | {"tags": _json(json.loads(tags or "{}") | opening.tags)}
    names = ", ".join(f"{name} = ?" for name in values)
    cursor.execute(f"update raw.run set {names} where run = ?", [*values.values(), run])


def _about(opening: StreamOpen) -> dict[str, object]:
    """What a run is told of by the trainer that opens it."""
    return {
        "trainer": opening.trainer, "host": opening.host, "git_commit": opening.git_commit,
        "config": _json(opening.config), "versions": _json(opening.versions), "settings": _json(_settings(opening)),
    }  # fmt: skip


def _supersede(cursor: duckdb.DuckDBPyConnection, run: int, opening: StreamOpen) -> None:
    # All ranks of the earlier sessions at once: until the last new rank has opened its stream, a step would otherwise
    # be added up from new and superseded parts; and a session may come back with fewer ranks.
    cursor.execute(
        "update raw.stream set valid_to_step = least(coalesce(valid_to_step, $step), $step) "
        "where run = $run and producer = $producer and session_id != $session",
        {
            "step": opening.resume_step, "run": run, "producer": opening.producer, "session": opening.session_id,
        },
    )  # fmt: skip


def _already_superseded_at(cursor: duckdb.DuckDBPyConnection, run: int, opening: StreamOpen) -> int | None:
    """Where a session that was started later and is known already has resumed from."""
    rows = cursor.execute(
        "select min(resume_step) from raw.stream where run = ? and producer = ? and session_id != ? and started > ?",
        [run, opening.producer, opening.session_id, utc_naive(opening.started)],
    ).fetchall()
    found: int | None = rows[0][0]
    return found


def _stream_values(stream: int, stream_id: str, run: int, run_id: str, opening: StreamOpen) -> dict[str, object]:
    return {
        "stream": stream, "stream_id": stream_id, "run": run, "run_id": run_id, "requested_run_id": opening.run_id,
        "producer": opening.producer, "session_id": opening.session_id, "rank": opening.rank,
        "world_size": opening.world_size, "resume_step": opening.resume_step, "opened": utc_now(),
        "started": utc_naive(opening.started), "host": opening.host, "pid": opening.pid, "trainer": opening.trainer,
        "git_commit": opening.git_commit, "versions": _json(opening.versions), "config": _json(opening.config),
        "settings": _json(_settings(opening)),
    }  # fmt: skip


def _next_key(cursor: duckdb.DuckDBPyConnection, table: str, beyond: int) -> int:
    rows = cursor.execute(f"select coalesce(max({table}), 0) from raw.{table}").fetchall()
    return max(int(rows[0][0]), beyond) + 1


def _insert(cursor: duckdb.DuckDBPyConnection, table: schema.Table, values: dict[str, object]) -> None:
    if set(values) != set(table.column_names):
        raise StorageError(f"a row of raw.{table.name} needs {table.column_names}")
    names, marks = ", ".join(values), ", ".join("?" for _ in values)
    cursor.execute(f"insert into raw.{table.name} ({names}) values ({marks})", list(values.values()))


def _json(value: object) -> str:
    return to_json(value, inf_nan_mode="null", fallback=str).decode()  # NaN is no JSON: no function of SQL reads it


def _settings(opening: StreamOpen) -> dict[str, Any]:
    return {**opening.settings, "permissions": opening.permissions.model_dump(mode="json")}
