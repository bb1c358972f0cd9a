"""The record of what was removed. It is written in the transaction that removes, and outlives the run."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import duckdb

from entrostat.storage.streams import utc_now

VIEW = """
select run_id as run, what, sum(num_rows)::bigint as num_rows, min(from_step) as from_step, max(to_step) as to_step,
    max(removed) as removed, reason
from raw.removal group by run_id, what, reason
"""


def rows_removed(
    cursor: duckdb.DuckDBPyConnection,
    run: tuple[int, str],
    stream: int,
    what: str,
    num_rows: int,
    steps: tuple[int, int],
    reason: str,
) -> None:
    """Rows of one stream were removed.

    Args:
        run: its key and its name.
        what: the wire's name of their table.
        steps: the first and the last step they were of.
    """
    _append(cursor, [*run, stream, what, num_rows, *steps, utc_now(), reason])


def run_removed(cursor: duckdb.DuckDBPyConnection, key: int, run_id: str, reason: str) -> None:
    """A whole run is about to be removed."""
    counted = cursor.execute(
        "select coalesce(sum(num_rows), 0)::bigint, min(first_step), max(last_step) from raw.batch where run = ?", [key]
    ).fetchall()[0]
    _append(cursor, [None, run_id, None, "run", *counted, utc_now(), reason])


def of_run(cursor: duckdb.DuckDBPyConnection, key: int) -> list[tuple[Any, ...]]:
    """What of a run was removed: (what, rows, first step, last step, when, why), by table and reason."""
    return cursor.execute(
        "select what, sum(num_rows)::bigint, min(from_step), max(to_step), max(removed), reason from raw.removal "
        "where run = ? group by what, reason order by max(removed), what",
        [key],
    ).fetchall()


def tokens_removed(cursor: duckdb.DuckDBPyConnection, keys: Sequence[int]) -> dict[int, datetime]:
    """Run -> when token or sequence rows of it were last removed, UTC, of the runs where they were."""
    return dict(
        cursor.execute(
            "select run, max(removed) from raw.removal where run in (select unnest(?)) "
            "and what in ('token', 'sequence') group by run",
            [list(keys)],
        ).fetchall()
    )


def _append(cursor: duckdb.DuckDBPyConnection, values: list[Any]) -> None:
    cursor.execute(
        "insert into raw.removal (run, run_id, stream, what, num_rows, from_step, to_step, removed, reason) "
        "values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        values,
    )
