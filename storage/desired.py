"""Desired state in the database: every version is kept, the newest counts."""

import duckdb

from entrostat.storage.streams import utc_now
from entrostat.wire.messages import DesiredState


def latest(cursor: duckdb.DuckDBPyConnection) -> dict[str, DesiredState]:
    """Run's name -> its newest desired state."""
    rows = cursor.execute(
        "select r.run_id, arg_max(d.document, d.version) from raw.desired_state d join raw.run r on r.run = d.run "
        "group by r.run_id"
    ).fetchall()
    return {run_id: DesiredState.model_validate_json(document) for run_id, document in rows}


def append(cursor: duckdb.DuckDBPyConnection, run: int, state: DesiredState, version: int) -> DesiredState:
    """Write ``state`` as ``version`` of the run."""
    now = utc_now()
    written = state.model_copy(update={"version": version, "updated": now})
    cursor.execute("insert into raw.desired_state values (?, ?, ?, ?)", [run, version, written.model_dump_json(), now])
    return written
