"""Runs as the API gives them: summaries, details, events; and what people may change."""

import json
from datetime import UTC, datetime
from typing import Any

import duckdb

from entrostat.storage import removals, schema
from entrostat.storage.derived import FAMILIES, MAJORITY_AT, Family
from entrostat.storage.streams import utc_now
from entrostat.wire.errors import NotFound

LIVE_S = 30.0
"""A run is live so long after its last batch."""
LATEST_SIGNALS = ("entropy_mean", "reward_mean", "pass_at_1", "d_collapse", "ppl")
"""Signals of a summary, where they are known."""
LATEST_WITHIN_STEPS = 50
"""The latest value of a signal is looked for among so many last steps."""

_LAST_STEP = """
select max(t.received), max(least(t.last_step, coalesce(s.valid_to_step, t.last_step)))
from raw.batch t join raw.stream s on t.stream = s.stream where t.run = ?
"""


def key_of(cursor: duckdb.DuckDBPyConnection, run_id: str) -> int:
    """The run's surrogate key. Raises NotFound."""
    rows = cursor.execute("select run from raw.run where run_id = ?", [run_id]).fetchall()
    if not rows:
        raise NotFound(f"no run {run_id!r}: GET /v1/runs lists them")
    return int(rows[0][0])


def last_step(cursor: duckdb.DuckDBPyConnection, key: int) -> int | None:
    """The highest step of a run, where it has one; what a resumed session superseded does not count."""
    found: int | None = cursor.execute(_LAST_STEP, [key]).fetchall()[0][1]
    return found


def names(cursor: duckdb.DuckDBPyConnection, search: str | None, limit: int) -> list[str]:
    """Names of the runs, newest first; ``search`` is looked for in names, tags and notes."""
    rows = cursor.execute(
        "select run_id from raw.run where $search = '' or contains(lower(run_id || ' ' || tags || ' ' || notes), "
        "lower($search)) order by created desc, run desc limit $limit",
        {"search": search or "", "limit": limit},
    ).fetchall()
    return [row[0] for row in rows]


def summary(cursor: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, Any]:
    """A run's summary, with what ``with_status`` needs to tell its status at another moment."""
    key = key_of(cursor, run_id)
    created, trainer, host, commit, world_size, tags, notes = cursor.execute(
        "select created, trainer, host, git_commit, world_size, tags, notes from raw.run where run = ?", [key]
    ).fetchall()[0]
    last_batch, last_step = cursor.execute(_LAST_STEP, [key]).fetchall()[0]
    opened = cursor.execute("select max(opened) from raw.stream where run = ?", [key]).fetchall()[0][0]
    ended = cursor.execute(
        "select max(received) from raw.event_row where run = ? and kind = 'run_ended'", [key]
    ).fetchall()[0][0]
    return {
        "run": run_id,
        "created": iso(created),
        "last_seen": iso(last_batch),
        "trainer": trainer,
        "tags": json.loads(tags),
        "notes": notes,
        "host": host,
        "git_commit": commit,
        "world_size": world_size,
        "last_step": last_step,
        "latest": {} if last_step is None else latest(cursor, run_id, last_step),
        "tokens_removed": iso(removals.tokens_removed(cursor, key)),
        "_alive": max(t for t in (last_batch, opened, created) if t is not None),
        "_is_ended": ended is not None and (opened is None or ended >= opened),
    }


def with_status(kept: dict[str, Any]) -> dict[str, Any]:
    """A summary as it is now: ``live``, ``ended`` or ``silent``."""
    shown = {key: value for key, value in kept.items() if not key.startswith("_")}
    is_recent = (utc_now() - kept["_alive"]).total_seconds() <= LIVE_S
    shown["status"] = "ended" if kept["_is_ended"] else "live" if is_recent else "silent"
    return shown


def latest(
    cursor: duckdb.DuckDBPyConnection, run_id: str, last_step: int, signals: tuple[str, ...] = LATEST_SIGNALS
) -> dict[str, float]:
    """The newest value of each of ``signals`` that is known."""
    rows = cursor.execute(
        # Of these none is derived; without the derived ones the engine has half as much to plan.
        "select name, arg_max(value, step) from raw.core_metric where run = ? and step > ? and name in "
        f"({', '.join('?' for _ in signals)}) and value is not null group by name",
        [run_id, last_step - LATEST_WITHIN_STEPS, *signals],
    ).fetchall()
    return dict(rows)


def details(cursor: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, Any]:
    """What a run's page shows beyond the summary."""
    key = key_of(cursor, run_id)
    config, versions, settings = cursor.execute(
        "select config, versions, settings from raw.run where run = ?", [key]
    ).fetchall()[0]
    metric_names = cursor.execute("select distinct name from raw.step_part where run = ?", [key]).fetchall()
    found = {row[0] for row in metric_names}
    # Derived signals are there where what they are made of is.
    found |= {name for name, source in _DERIVED.items() if source in found}
    found |= {name for family in FAMILIES if _has_source(cursor, key, family) for name in family.signals}
    largest = json.loads(settings).get("group_size") or max(MAJORITY_AT)
    found -= {f"maj_at_{k}" for k in MAJORITY_AT if k > largest}
    return {
        "config": json.loads(config),
        "versions": json.loads(versions),
        "settings": json.loads(settings),
        "streams": _records(cursor, "select * exclude (config, settings, versions) from stream where run = ?", run_id),
        "baseline": next(iter(_records(cursor, "select * from baseline where run = ?", run_id)), None),
        "names": sorted(found),
        "removed": [
            dict(zip(_REMOVED, (*row[:4], iso(row[4]), row[5]), strict=True)) for row in removals.of_run(cursor, key)
        ],
    }


_REMOVED = ("what", "num_rows", "from_step", "to_step", "removed", "reason")
_DERIVED = {"d_entropy": "entropy_mean", "d_collapse": "forking_rate"}


def _has_source(cursor: duckdb.DuckDBPyConnection, key: int, family: Family) -> bool:
    statement = f"select 1 from raw.{family.source} where run = ? and {family.where} limit 1"
    return bool(cursor.execute(statement, [key]).fetchall())


def events(cursor: duckdb.DuckDBPyConnection, run_id: str, limit: int) -> list[dict[str, Any]]:
    """The newest events, oldest first."""
    key_of(cursor, run_id)
    rows = cursor.execute(
        "select step, time, kind, message, detail from event where run = ? order by time desc, step desc limit ?",
        [run_id, limit],
    ).fetchall()
    return [
        {"step": step, "time": iso(time), "kind": kind, "message": message, "detail": _object(detail)}
        for step, time, kind, message, detail in reversed(rows)
    ]


def update(cursor: duckdb.DuckDBPyConnection, run_id: str, tags: dict[str, str] | None, notes: str | None) -> None:
    """Replace tags or notes; None leaves them."""
    key = key_of(cursor, run_id)
    if tags is not None:
        cursor.execute("update raw.run set tags = ? where run = ?", [json.dumps(tags, ensure_ascii=False), key])
    if notes is not None:
        cursor.execute("update raw.run set notes = ? where run = ?", [notes, key])


def delete(cursor: duckdb.DuckDBPyConnection, key: int) -> None:
    """Remove every row of a run. The file keeps its size; the space is used again."""
    for table in schema.ALL_TABLES:
        if "run" in table.column_names:
            cursor.execute(f"delete from raw.{table.name} where run = ?", [key])


def iso(moment: datetime | None) -> str | None:
    """A TIMESTAMP of the database as ISO 8601 with its zone."""
    return None if moment is None else moment.replace(tzinfo=UTC).isoformat()


def _object(text: str | None) -> Any:
    """An event's detail; producers promise a JSON object, and text that is none is shown as it is."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return {"text": text}


def _records(cursor: duckdb.DuckDBPyConnection, sql: str, run_id: str) -> list[dict[str, Any]]:
    rows = cursor.execute(sql, [run_id]).fetchall()
    columns = [column[0] for column in cursor.description or []]
    return [
        {name: iso(value) if isinstance(value, datetime) else value for name, value in zip(columns, row, strict=True)}
        for row in rows
    ]
