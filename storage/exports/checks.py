"""What rows must be like before they are taken in: an export is held to what ingest is held to, and to itself."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from entrostat.storage import schema
from entrostat.storage.exports.layout import ROW_TABLES, file_name
from entrostat.wire.bins import MAX_BIN
from entrostat.wire.codec import check_table
from entrostat.wire.errors import MalformedBatch, MalformedExport
from entrostat.wire.messages import DesiredState, RunId, StreamId
from entrostat.wire.tables import TABLES as WIRE_TABLES

EARLIEST, LATEST = datetime(1900, 1, 1), datetime(9999, 1, 1)
"""Moments that every program can say."""
_OBJECTS = {"tags", "config", "versions", "settings"}
"""Columns that are JSON objects."""
_TEXTS = {"tags", "versions"}
"""Of these, the ones whose values are texts."""
_RUN_ID: TypeAdapter[str] = TypeAdapter(RunId)
_STREAM_ID: TypeAdapter[str] = TypeAdapter(StreamId)


def check(table: schema.Table, rows: pa.Table) -> None:
    """Hold some rows of a table to what every row of it must be like.

    Raises:
        MalformedExport: names the file, the column and what is wrong.
    """
    name = file_name(table)
    try:
        rows.validate(full=True)
        if table.name in ROW_TABLES:
            wire_name = ROW_TABLES[table.name]
            check_table(wire_name, _as_sent(rows.select(WIRE_TABLES[wire_name].names), wire_name))
    except pa.ArrowException as error:
        raise MalformedExport(f"its rows are not consistent: {error}", name) from error
    except MalformedBatch as error:
        raise MalformedExport(f"column {error.column!r}: {error.reason}", name) from error
    for column in table.columns:
        values = rows[column.name]
        if not column.nullable and values.null_count:
            raise MalformedExport(f"column {column.name!r}: {values.null_count} values are null, none may be", name)
        if pa.types.is_timestamp(values.type):
            _check_moments(name, column.name, values)
        if column.name in _OBJECTS:
            for text in values.to_pylist():
                _check_object(name, column.name, text)
    if table in (schema.RUN, schema.STREAM, schema.DESIRED_STATE, schema.BASELINE):
        for row in rows.to_pylist():
            _check_row(table, row)


def _as_sent(rows: pa.Table, wire_name: str) -> pa.Table:
    return rows.cast(pa.schema([pa.field(f.name, f.type, True) for f in WIRE_TABLES[wire_name]]))


def _check_moments(name: str, column: str, values: pa.ChunkedArray) -> None:
    ends = pc.min_max(values.cast(pa.int64())).as_py()
    low, high = (pa.scalar(moment, pa.timestamp("us")).value for moment in (EARLIEST, LATEST))
    if ends["min"] is not None and not (low <= ends["min"] and ends["max"] <= high):
        raise MalformedExport(f"column {column!r}: a moment is not between {EARLIEST:%Y} and {LATEST:%Y}", name)


def _check_object(name: str, column: str, text: str) -> None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or (column in _TEXTS and not all(isinstance(v, str) for v in found.values())):
        raise MalformedExport(f"column {column!r}: {text[:100]!r} is not a JSON object as it should be", name)


def _check_row(table: schema.Table, row: Mapping[str, Any]) -> None:
    name = file_name(table)
    try:
        if "run_id" in row:
            _RUN_ID.validate_python(row["run_id"])
        if "stream_id" in row:
            _STREAM_ID.validate_python(row["stream_id"])
        if "document" in row:
            DesiredState.model_validate_json(row["document"])
    except ValidationError as error:
        first = error.errors()[0]
        raise MalformedExport(f"{first['msg']}: {str(first['input'])[:100]!r}", name) from error
    if not -MAX_BIN <= row.get("threshold_bin", 0) <= MAX_BIN:
        raise MalformedExport(f"column 'threshold_bin': {row['threshold_bin']} is no bin", name)
