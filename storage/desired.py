"""Desired state in the database: every version is kept, the newest counts."""

from datetime import UTC

import duckdb

from entrostat.storage.runs import key_of
from entrostat.storage.streams import utc_now
from entrostat.wire.errors import Conflict
from entrostat.wire.messages import DesiredState


def latest(cursor: duckdb.DuckDBPyConnection) -> dict[str, DesiredState]:
    """Run's name -> its newest desired state."""
    rows = cursor.execute(
        "select r.run_id, arg_max(d.document, d.version) from raw.desired_state d join raw.run r on r.run = d.run "
        "group by r.run_id"
    ).fetchall()
    return {run_id: DesiredState.model_validate_json(document) for run_id, document in rows}


def held(cursor: duckdb.DuckDBPyConnection, run_id: str, expected_version: int | None) -> tuple[int, DesiredState]:
    """The run's key and its newest desired state, in the writer's transaction: a cache may lag behind.

    Raises:
        NotFound: no such run.
        Conflict: ``expected_version`` is given and is not the newest.
    """
    key = key_of(cursor, run_id)
    newest = latest(cursor).get(run_id, DesiredState())
    if expected_version is not None and newest.version != expected_version:
        raise Conflict(f"run {run_id!r} is at version {newest.version} by now, not {expected_version}: read it again")
    return key, newest


def append(cursor: duckdb.DuckDBPyConnection, run: int, state: DesiredState, version: int) -> DesiredState:
    """Write ``state`` as ``version`` of the run."""
    now = utc_now()
    written = state.model_copy(update={"version": version, "updated": now.replace(tzinfo=UTC)})
    cursor.execute("insert into raw.desired_state values (?, ?, ?, ?)", [run, version, written.model_dump_json(), now])
    return written
