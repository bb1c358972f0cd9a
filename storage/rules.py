"""Rules in the database: every version of each, how far each has come in each run, and the steps they are held to."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb

from entrostat.storage.derived import metrics_of
from entrostat.storage.merged import JOIN, VALID
from entrostat.storage.permissions import permissions
from entrostat.storage.streams import utc_now
from entrostat.wire.messages import Permissions


@dataclass(frozen=True, slots=True)
class HeldRule:
    """A rule as it stands: its newest version."""

    name: str
    version: int
    document: dict[str, Any]
    updated: datetime


@dataclass(frozen=True, slots=True)
class HeldState:
    """How far a rule has come in a run.

    Args:
        version: of the rule.
        step: last step that was evaluated.
        document: JSON.
    """

    rule: str
    version: int
    step: int
    document: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What the rules have to know of a run beside its curves.

    Args:
        created: when the run was: one that was deleted and made again under its name is another.
        permissions: what the newest session of the run allows.
        num_baseline: steps of its baseline.
        resumes: the checkpoints' steps that sessions resumed from, oldest session first.
        states: name of a rule -> its state.
    """

    created: datetime
    tags: dict[str, str]
    permissions: Permissions
    num_baseline: int
    resumes: tuple[int, ...]
    states: dict[str, HeldState]


def held(cursor: duckdb.DuckDBPyConnection) -> list[HeldRule]:
    """The rules that were not removed, by name."""
    rows = cursor.execute(
        "select name, max(version), arg_max(coalesce(document, ''), version), arg_max(updated, version) from raw.rule "
        "group by name order by name"
    ).fetchall()
    return [HeldRule(name, version, json.loads(text), updated) for name, version, text, updated in rows if text]


def append(cursor: duckdb.DuckDBPyConnection, name: str, document: dict[str, Any] | None) -> HeldRule:
    """Write a rule's next version; None removes it."""
    version = cursor.execute("select coalesce(max(version), 0) + 1 from raw.rule where name = ?", [name]).fetchall()
    now = utc_now()
    text = None if document is None else json.dumps(document, ensure_ascii=False)
    cursor.execute("insert into raw.rule values (?, ?, ?, ?)", [name, version[0][0], text, now])
    return HeldRule(name, version[0][0], document or {}, now)


def standing(cursor: duckdb.DuckDBPyConnection, run: int, default_baseline: int) -> Standing:
    """What the rules have to know of a run; ``run`` is its surrogate key."""
    created, tags, settings = cursor.execute(
        "select created, tags, settings from raw.run where run = ?", [run]
    ).fetchall()[0]
    said = json.loads(settings)
    num = said.get("baseline_steps")
    resumes = cursor.execute(
        "select min(resume_step) from raw.stream where run = ? and producer = 'trainer' and resume_step is not null "
        "group by session_id order by min(opened)",
        [run],
    ).fetchall()
    states = cursor.execute("select rule, version, step, document from raw.rule_state where run = ?", [run]).fetchall()
    return Standing(
        created=created,
        tags=json.loads(tags),
        permissions=permissions(cursor, run),
        num_baseline=num if isinstance(num, int) and num >= 1 else default_baseline,
        resumes=tuple(step for (step,) in resumes),
        states={row[0]: HeldState(*row) for row in states},
    )


def write_states(cursor: duckdb.DuckDBPyConnection, run: int, states: Sequence[HeldState]) -> None:
    """The states of a run's rules are these."""
    cursor.execute("delete from raw.rule_state where run = ?", [run])
    if states:
        cursor.executemany(
            "insert into raw.rule_state values (?, ?, ?, ?, ?)",
            [[run, s.rule, s.version, s.step, s.document] for s in states],
        )


def runs_with_states(cursor: duckdb.DuckDBPyConnection) -> list[str]:
    """Names of the runs in which a rule has come anywhere."""
    rows = cursor.execute(
        "select distinct r.run_id from raw.rule_state s join raw.run r on r.run = s.run order by 1"
    ).fetchall()
    return [name for (name,) in rows]


def recorded_steps(cursor: duckdb.DuckDBPyConnection, run_id: str, after: int) -> list[tuple[int, bool]]:
    """(step, whether all ranks have sent something of it), ascending, of the steps beyond ``after``."""
    return cursor.execute(
        "select step, is_complete from raw.step_ranks where run = ? and step > ? order by step", [run_id, after]
    ).fetchall()


def step_at(cursor: duckdb.DuckDBPyConnection, run_id: str, moment: datetime) -> int:
    """The highest step of which something had arrived at ``moment``; -1 where nothing had."""
    rows = cursor.execute(
        f"select coalesce(max(t.step), -1) from raw.step_part t {JOIN} where {VALID} and s.run_id = ? "
        "and t.received <= ?",
        [run_id, moment],
    ).fetchall()
    return int(rows[0][0])


def step_values(
    cursor: duckdb.DuckDBPyConnection, run_id: str, names: Sequence[str], after: int, to: int
) -> dict[int, dict[str, float]]:
    """Step -> signal -> value, of the steps beyond ``after`` up to ``to``; what has no finite value is left out."""
    if not names:
        return {}
    marks = {f"name_{i}": name for i, name in enumerate(names)}
    chosen = metrics_of(names, "run = $run_id and step > $after and step <= $until").format(
        names=", ".join(f"${mark}" for mark in marks)
    )
    rows = cursor.execute(
        f"select step, name, value from ({chosen}) where value is not null and isfinite(value)",
        {"run_id": run_id, "after": after, "until": to, **marks},
    ).fetchall()
    found: dict[int, dict[str, float]] = {}
    for step, name, value in rows:
        found.setdefault(step, {})[name] = float(value)
    return found
