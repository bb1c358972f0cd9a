"""What the values of a batch's columns may be: bounds, names, texts. Types and nulls are checked before."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from entrostat.wire import strict_json
from entrostat.wire.errors import MalformedBatch
from entrostat.wire.tables import BOUNDS, MAX_NAME_CHARS, MAX_TEXT_CHARS, NAMES


def check_values(name: str, table: pa.Table) -> None:
    """Raises MalformedBatch where a value of the table ``name`` is not as declared, with its column."""
    for column, (low, high) in BOUNDS[name].items():
        _check_bounds(name, table, column, low, high)
    for field in table.schema:
        if field.type == pa.string():
            _check_text(name, table, field.name)
    if name == "event":
        _check_details(table)


def _check_bounds(name: str, table: pa.Table, column: str, low: int, high: int) -> None:
    values = table[column]
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    found = pc.min_max(values)
    for value in (found["min"].as_py(), found["max"].as_py()):
        if value is not None and not low <= value <= high:
            shown = (_moment(low), _moment(high)) if column == "time" else (low, high)
            raise MalformedBatch(f"it goes from {shown[0]} to {shown[1]}, found {value}", name, column)


def _moment(microseconds: int) -> Any:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).date()


def _check_text(name: str, table: pa.Table, column: str) -> None:
    longest = MAX_NAME_CHARS if column in NAMES else MAX_TEXT_CHARS
    values = table[column]
    if values.null_count == len(values) or pc.max(pc.binary_length(values)).as_py() <= longest:
        return  # it has no more characters than bytes, and the bytes need not be read
    found = pc.max(pc.utf8_length(values)).as_py()
    if found > longest:
        raise MalformedBatch(f"a text has {found} characters: at most {longest} are taken", name, column)


def _check_details(table: pa.Table) -> None:
    for text in table["detail"].to_pylist():
        if text is None:
            continue
        try:
            read = strict_json.loads(text, allow_nan=False)
        except ValueError as error:
            raise MalformedBatch(f"not a JSON object: {error}", "event", "detail") from error
        if not isinstance(read, dict):
            raise MalformedBatch("it is a JSON object, or null", "event", "detail")
