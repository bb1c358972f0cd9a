"""A result as CSV for people, who open it in a spreadsheet: a text that would be taken for a formula stays a text."""

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

_FORMULA = r"^[=+\-@\t\r]"
"""How a cell begins that spreadsheets compute (OWASP, CSV injection). Anyone who sends events can write one."""


def csv_bytes(table: pa.Table) -> bytes:
    """``table`` as UTF-8 CSV; lists are left out, texts that begin like a formula get an apostrophe in front.

    The command line's CSV is for programs and has every value as it is.
    """
    flat = table.drop_columns([field.name for field in table.schema if pa.types.is_nested(field.type)])
    columns = [_harmless(column) if _is_text(column.type) else column for column in flat.columns]
    names = [f"'{name}" if name[:1] in "=+-@\t\r" and name else name for name in flat.column_names]
    buffer = pa.BufferOutputStream()
    csv.write_csv(pa.table(columns, names=names), buffer)
    return bytes(buffer.getvalue())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _harmless(column: pa.ChunkedArray) -> pa.ChunkedArray:
    marked = pc.binary_join_element_wise(pa.scalar("'", column.type), column, pa.scalar("", column.type))
    return pc.if_else(pc.match_substring_regex(column, _FORMULA), marked, column)
