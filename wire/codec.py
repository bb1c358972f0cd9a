"""Bytes <-> tables. A body is zstd over concatenated Arrow IPC streams, one a table; JSON is accepted from people.

Nothing in a body is executed or used as a path: unknown tables, columns and versions are refused with their names.
"""

import json
from typing import Any

import pyarrow as pa

from entrostat.wire.errors import MalformedBatch, TooLarge, UnknownVersion
from entrostat.wire.mergeable import STATE_LENGTH
from entrostat.wire.tables import PROTOCOL, TABLES

Tables = dict[str, pa.Table]

CONTENT_TYPE = "application/vnd.entrostat.arrow+zstd"
MAX_DECOMPRESSED_BYTES = 256 * 2**20


def encode(tables: Tables) -> bytes:
    """The body of a batch.

    Args:
        tables: table name -> rows, with exactly the columns of ``wire/tables.py``; empty tables are left out.
    """
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        for name, table in tables.items():
            if table.num_rows == 0:
                continue
            schema = TABLES[name].with_metadata({"table": name, "protocol": str(PROTOCOL)})
            with pa.ipc.new_stream(out, schema) as writer:
                writer.write_table(table.select(schema.names).cast(schema))
    return bytes(sink.getvalue())


def decode(body: bytes, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Tables:
    """The tables of a body, checked.

    Raises:
        MalformedBatch: not a body of ours; names the table, the column and what to change.
        TooLarge: it decompresses to more than ``max_bytes``.
        UnknownVersion: written by a newer protocol.
    """
    raw = _decompress(body, max_bytes)
    reader = pa.BufferReader(raw)
    tables: Tables = {}
    while reader.tell() < raw.size:
        try:
            table = pa.ipc.open_stream(reader).read_all()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise MalformedBatch(f"not an Arrow IPC stream at byte {reader.tell()}: {error}") from error
        name, rows = _checked(table)
        if name in tables:
            raise MalformedBatch("a batch holds each table at most once", table=name)
        tables[name] = rows
    return tables


def _decompress(body: bytes, max_bytes: int) -> pa.Buffer:
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            raw = stream.read_buffer(max_bytes + 1)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MalformedBatch(f"not a zstd body: {error}") from error
    if raw.size > max_bytes:
        raise TooLarge(f"the body decompresses to more than {max_bytes} bytes: send smaller batches")
    return raw


def _checked(table: pa.Table) -> tuple[str, pa.Table]:
    metadata = table.schema.metadata or {}
    name = metadata.get(b"table", b"").decode(errors="replace")
    version = metadata.get(b"protocol", b"").decode(errors="replace")
    if not version.isdigit():
        raise MalformedBatch("the schema's metadata lacks the protocol version", table=name or None)
    if int(version) > PROTOCOL:
        raise UnknownVersion(
            f"the batch speaks protocol {version}, this server {PROTOCOL}: update entrostat on the server"
        )
    if name not in TABLES:
        raise MalformedBatch(f"unknown table {name!r}: the tables are {sorted(TABLES)}")
    return name, check_table(name, table)


def check_table(name: str, table: pa.Table) -> pa.Table:
    """``table`` with its columns in order, after every check that a batch must pass.

    Raises:
        MalformedBatch: with the table, the column and the reason.
    """
    schema = TABLES[name]
    for column in table.schema.names:
        if column not in schema.names:
            raise MalformedBatch(f"unknown column: the columns are {schema.names}", name, column)
    for field in schema:
        if field.name not in table.schema.names:
            raise MalformedBatch("the column is missing", name, field.name)
        column = table[field.name]
        if column.type != field.type:
            raise MalformedBatch(f"the type is {column.type}, it must be {field.type}", name, field.name)
        if not field.nullable and column.null_count:
            raise MalformedBatch(f"{column.null_count} values are null, none may be", name, field.name)
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        raise MalformedBatch(f"the rows are not consistent: {error}", name) from error
    steps = table["step"]
    lowest = pa.compute.min(steps).as_py()
    if lowest is not None and lowest < 0:
        raise MalformedBatch(f"steps count from 0, found {lowest}", name, "step")
    if name == "step_metric":
        _check_states(table)
    return table.select(schema.names)


def _check_states(table: pa.Table) -> None:
    rules = table["merge"].combine_chunks()
    lengths = pa.compute.list_value_length(table["state"]).combine_chunks()
    if table["state"].num_chunks and any(chunk.values.null_count for chunk in table["state"].chunks):
        raise MalformedBatch("a state holds a null", "step_metric", "state")
    pairs = pa.table({"merge": rules, "length": lengths}).group_by(["merge", "length"]).aggregate([]).to_pylist()
    for pair in pairs:
        if STATE_LENGTH.get(pair["merge"]) is None:
            raise MalformedBatch(
                f"unknown merge rule {pair['merge']!r}: the rules are {sorted(STATE_LENGTH)}", "step_metric", "merge"
            )
        if STATE_LENGTH[pair["merge"]] != pair["length"]:
            raise MalformedBatch(
                f"a {pair['merge']!r} has {STATE_LENGTH[pair['merge']]} numbers, found {pair['length']}",
                "step_metric",
                "state",
            )


def decode_json(body: bytes) -> Tables:
    """The tables of a JSON body: ``{"step_metric": [{"step": 3, "name": "loss", "value": 0.5}], ...}``.

    A ``step_metric`` row may give ``value`` in the place of ``merge`` and ``state``.

    Raises:
        MalformedBatch: as ``decode``.
    """
    try:
        document = json.loads(body)
    except ValueError as error:
        raise MalformedBatch(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedBatch("a JSON batch is an object of table name -> list of rows")
    return {name: _rows_to_table(name, rows) for name, rows in document.items()}


def _rows_to_table(name: str, rows: Any) -> pa.Table:
    if name not in TABLES:
        raise MalformedBatch(f"unknown table {name!r}: the tables are {sorted(TABLES)}")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MalformedBatch("a table is a list of rows, a row an object of column -> value", name)
    if name == "step_metric":
        rows = [_plain_metric(row) for row in rows]
    schema = TABLES[name]
    for row in rows:
        for column in row:
            if column not in schema.names:
                raise MalformedBatch(f"unknown column: the columns are {schema.names}", name, str(column))
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        try:
            columns.append(_array(values, field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise MalformedBatch(f"must be {field.type}: {error}", name, field.name) from error
    return check_table(name, pa.table(columns, names=schema.names))


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and any(isinstance(v, str) for v in values):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


def _plain_metric(row: dict[str, Any]) -> dict[str, Any]:
    if "value" not in row:
        return row
    rest = {key: value for key, value in row.items() if key != "value"}
    return {"merge": "last", "state": [row["value"]], **rest}
