"""A result, as people or programs want it: table, csv, json, parquet, arrow."""

import json
import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table


class Format(StrEnum):
    """How a result is printed."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"
    arrow = "arrow"


_BINARY = (Format.parquet, Format.arrow)


def write(result: "pa.Table", form: Format, out: Path | None) -> None:
    """Print ``result``, or write it to ``out``.

    Raises:
        ValueError: a binary form would go to a terminal.
    """
    if form in _BINARY and out is None and sys.stdout.isatty():
        raise ValueError(f"--format {form} writes bytes: add --out FILE or redirect")
    if form is Format.table and out is None:
        _print_table(result)
        return
    sink = out.open("wb") if out else sys.stdout.buffer
    try:
        sink.write(_encoded(result, form))
        sink.flush()
    finally:
        if out:
            sink.close()


def _encoded(result: "pa.Table", form: Format) -> bytes:
    import pyarrow as pa

    buffer = pa.BufferOutputStream()
    if form is Format.csv or form is Format.table:
        from pyarrow import csv

        csv.write_csv(_flat(result), buffer)
    elif form is Format.parquet:
        from pyarrow import parquet

        parquet.write_table(result, buffer)
    elif form is Format.arrow:
        with pa.ipc.new_stream(buffer, result.schema) as writer:
            writer.write_table(result)
    else:
        return (json.dumps(result.to_pylist(), default=str) + "\n").encode()
    return bytes(buffer.getvalue())


def _flat(result: "pa.Table") -> "pa.Table":
    """CSV has no lists: those become their JSON text."""
    import pyarrow as pa

    columns = []
    for column in result.columns:
        if pa.types.is_nested(column.type):
            columns.append(pa.array([None if v is None else json.dumps(v, default=str) for v in column.to_pylist()]))
        else:
            columns.append(column)
    return pa.table(columns, names=result.column_names)


def _print_table(result: "pa.Table") -> None:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for field in result.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        table.add_column(field.name, justify="right" if is_number else "left", no_wrap=True)
    for row in result.to_pylist():
        table.add_row(*(_cell(value) for value in row.values()))
    # A pipe has no width; on a terminal a wide result runs on, and the terminal's own keys scroll it.
    Console(markup=False, highlight=False, width=None if _fits(table) else 10_000).print(table, soft_wrap=True)


def _fits(table: "Table") -> bool:
    from rich.console import Console

    console = Console()
    return console.is_terminal and console.measure(table).minimum <= console.width


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else _CONTROL.sub(_visible, str(value))


# A terminal obeys these, and anyone who sends events can write them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _visible(found: "re.Match[str]") -> str:
    return f"\\x{ord(found.group()):02x}"
