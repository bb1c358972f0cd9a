"""Events that the server makes itself: what a rule did, what a person asked for. They belong to no stream."""

from typing import Any

import duckdb
from pydantic_core import to_json

from entrostat.storage.schema import SERVER_STREAM
from entrostat.storage.streams import utc_now


def append(
    cursor: duckdb.DuckDBPyConnection,
    run: int,
    step: int | None,
    kind: str,
    message: str,
    detail: dict[str, Any] | None = None,
) -> None:
    """Write an event in the transaction of ``cursor``.

    Args:
        run: the run's surrogate key.
        step: the step it belongs to, where there is one.
        detail: the values behind it; NaN and infinities become null.
    """
    now = utc_now()
    text = None if detail is None else to_json(detail, fallback=str, inf_nan_mode="null").decode()
    cursor.execute(
        "insert into raw.event_row (run, stream, received, step, time, kind, message, detail) "
        "values (?, ?, ?, ?, ?, ?, ?, ?)",
        [run, SERVER_STREAM, now, step, now, kind, message, text],
    )
