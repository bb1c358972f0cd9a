"""Runs as the API gives them: summaries, details, events; and what people may change."""

import json
from collections.abc import Mapping, Sequence
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

_LAST_STEPS = """
select t.run, max(t.received), max(least(t.last_step, coalesce(s.valid_to_step, t.last_step)))
from raw.batch t join raw.stream s on t.stream = s.stream where t.run in (select unnest(?)) group by t.run
"""


def key_of(cursor: duckdb.DuckDBPyConnection, run_id: str) -> int:
    """The run's surrogate key. Raises NotFound."""
    rows = cursor.execute("select run from raw.run where run_id = ?", [run_id]).fetchall()
    if not rows:
        raise NotFound(f"no run {run_id!r}: GET /v1/runs lists them")
    return int(rows[0][0])


def last_step(cursor: duckdb.DuckDBPyConnection, key: int) -> int | None:
    """The highest step of a run, where it has one; what a resumed session superseded does not count."""
    rows = cursor.execute(_LAST_STEPS, [[key]]).fetchall()
    return rows[0][2] if rows else None


def created(cursor: duckdb.DuckDBPyConnection, key: int) -> str | None:
    """When a run's first stream was opened."""
    return iso(cursor.execute("select created from raw.run where run = ?", [key]).fetchall()[0][0])


def names(cursor: duckdb.DuckDBPyConnection, search: str | None, limit: int) -> list[str]:
    """Names of the runs, newest first; ``search`` is looked for in names, tags and notes."""
    rows = cursor.execute(
        "select run_id from raw.run where $search = '' or contains(lower(run_id || ' ' || tags || ' ' || notes), "
        "lower($search)) order by created desc, run desc limit $limit",
        {"search": search or "", "limit": limit},
    ).fetchall()
    return [row[0] for row in rows]


def summaries(cursor: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Summaries of the runs there are, with what ``with_status`` needs to tell their status at another moment.

    Six queries however many runs: one by one, a list of 32 live runs took the page 4 s (``benchmarks/load.py``).
    """
    rows = cursor.execute(
        "select run, run_id, created, trainer, host, git_commit, world_size, tags, notes from raw.run "
        "where run_id in (select unnest(?))",
        [list(run_ids)],
    ).fetchall()
    keys = [row[0] for row in rows]
    ends = {key: (last_batch, step) for key, last_batch, step in cursor.execute(_LAST_STEPS, [keys]).fetchall()}
    opened = dict(_by_run(cursor, "select run, max(opened) from raw.stream", keys))
    ended = dict(_by_run(cursor, "select run, max(received) from raw.event_row", keys, "and kind = 'run_ended'"))
    steps = {run_id: ends[key][1] for key, run_id, *_ in rows if key in ends and ends[key][1] is not None}
    newest = latest(cursor, steps) if steps else {}
    removed = removals.tokens_removed(cursor, keys)
    found = {}
    for key, run_id, created, trainer, host, commit, world_size, tags, notes in rows:
        last_batch, step = ends.get(key, (None, None))
        moments = (last_batch, opened.get(key), created)
        found[run_id] = {
            "run": run_id,
            "created": iso(created),
            "last_seen": iso(last_batch),
            "trainer": trainer,
            "tags": json.loads(tags),
            "notes": notes,
            "host": host,
            "git_commit": commit,
            "world_size": world_size,
            "last_step": step,
            "latest": newest.get(run_id, {}),
            "tokens_removed": iso(removed.get(key)),
            "_alive": max(moment for moment in moments if moment is not None),
            "_is_ended": key in ended and (opened.get(key) is None or ended[key] >= opened[key]),
        }
    return found


def _by_run(cursor: duckdb.DuckDBPyConnection, select: str, keys: list[int], more: str = "") -> list[tuple[int, Any]]:
    return cursor.execute(f"{select} where run in (select unnest(?)) {more} group by run", [keys]).fetchall()


def with_status(kept: dict[str, Any]) -> dict[str, Any]:
    """A summary as it is now: ``live``, ``ended`` or ``silent``."""
    shown = {key: value for key, value in kept.items() if not key.startswith("_")}
    is_recent = (utc_now() - kept["_alive"]).total_seconds() <= LIVE_S
    shown["status"] = "ended" if kept["_is_ended"] else "live" if is_recent else "silent"
    return shown


def latest(
    cursor: duckdb.DuckDBPyConnection, last_steps: Mapping[str, int], signals: tuple[str, ...] = LATEST_SIGNALS
) -> dict[str, dict[str, float]]:
    """Run -> signal -> its newest value, of those of ``signals`` that are known.

    Args:
        last_steps: run -> its last step.
    """
    runs, froms = [*last_steps], [step - LATEST_WITHIN_STEPS for step in last_steps.values()]
    rows = cursor.execute(
        # Of these none is derived; without the derived ones the engine has half as much to plan. The first conditions
        # reach into the table, the join holds each run to its own last steps.
        "select m.run, m.name, arg_max(m.value, m.step) from raw.core_metric m "
        "join (select unnest($runs) as run, unnest($froms) as from_step) w on m.run = w.run and m.step > w.from_step "
        f"where m.run in ({', '.join(f'$run_{k}' for k in range(len(runs)))}) and m.step > $lowest "
        f"and m.name in ({', '.join(f'$name_{k}' for k in range(len(signals)))}) and m.value is not null group by all",
        {"runs": runs, "froms": froms, "lowest": min(froms)}
        | {f"run_{k}": run for k, run in enumerate(runs)}
        | {f"name_{k}": name for k, name in enumerate(signals)},
    ).fetchall()
    found: dict[str, dict[str, float]] = {run: {} for run in runs}
    for run, name, value in rows:
        found[run][name] = value
    return found


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
