"""Bytes <-> tables. A body is zstd over concatenated Arrow IPC streams, one a table; JSON is accepted from people.

Nothing in a body is executed or used as a path: unknown tables, columns and versions are refused with their names.
"""

import struct
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from entrostat.wire import strict_json
from entrostat.wire.column_values import check_values
from entrostat.wire.errors import MalformedBatch, TooLarge, UnknownVersion
from entrostat.wire.mergeable import STATE_LENGTH
from entrostat.wire.tables import PROTOCOL, TABLES, since

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
        _write_streams(out, tables)
    return bytes(sink.getvalue())


def encode_plain(tables: Tables) -> pa.Buffer:
    """The same without compression, for this machine's own disk."""
    sink = pa.BufferOutputStream()
    _write_streams(sink, tables)
    return sink.getvalue()


def _write_streams(out: pa.NativeFile, tables: Tables) -> None:
    for name, table in tables.items():
        if table.num_rows == 0:
            continue
        schema = TABLES[name].with_metadata({"table": name, "protocol": str(PROTOCOL)})
        with pa.ipc.new_stream(out, schema) as writer:
            writer.write_table(in_schema(table, schema))


def in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` with the columns of ``schema``, cast only where it differs: a cast to itself costs a call a column too.

    Raises:
        pa.ArrowException: a column cannot be cast.
        KeyError: a column is missing.
    """
    return table if table.schema.equals(schema) else table.select(schema.names).cast(schema)


def decode(body: bytes, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Tables:
    """The tables of a body, checked.

    Raises:
        MalformedBatch: not a body of ours; names the table, the column and what to change.
        TooLarge: it decompresses to more than ``max_bytes``.
        UnknownVersion: written by a newer protocol.
    """
    return decode_plain(_decompress(body, max_bytes))


def decode_plain(raw: pa.Buffer) -> Tables:
    """The tables of what ``encode_plain`` made, checked. Raises MalformedBatch and UnknownVersion as ``decode``."""
    reader = pa.BufferReader(raw)
    tables: Tables = {}
    while reader.tell() < raw.size:
        start = reader.tell()
        try:
            name, rows = _next_table(reader)
        except (pa.ArrowException, OSError, ValueError, KeyError, struct.error) as error:
            raise MalformedBatch(f"not an Arrow IPC stream at byte {start}: {error}") from error
        if name in tables:
            raise MalformedBatch("a batch holds each table at most once", table=name)
        tables[name] = rows
    if sum(table.nbytes for table in tables.values()) > raw.size:
        # Only made by hand: in a few bytes, the rows of any number of columns.
        raise MalformedBatch("its columns lie over each other: write each into bytes of its own")
    return tables


def _next_table(reader: pa.BufferReader) -> tuple[str, pa.Table]:
    start = reader.tell()
    _refuse_compressed_buffers(reader)
    reader.seek(start)
    stream = pa.ipc.open_stream(reader)
    name, protocol = _name_and_protocol(stream.schema)
    _check_schema(name, stream.schema, protocol)  # before any row is read: no type but ours is ever unpacked
    return name, check_table(name, _with_newer_columns(name, stream.read_all()))


def _refuse_compressed_buffers(reader: pa.BufferReader) -> None:
    """Arrow may compress each column once more inside the body, where ``max_bytes`` would not see what it becomes."""
    messages = pa.ipc.MessageReader.open_stream(reader)
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if message.type == "record batch" and _has_compression(message.metadata.to_pybytes()):
            raise MalformedBatch("its columns are compressed one by one: write the Arrow streams without compression")


def _has_compression(metadata: bytes) -> bool:
    """Whether the flatbuffer of a record batch's message sets ``RecordBatch.compression`` (Arrow's Message.fbs)."""
    header = _flatbuffer_field(metadata, struct.unpack_from("<I", metadata)[0], 2)
    if header is None:
        raise MalformedBatch("a message without a header")
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _flatbuffer_field(metadata, batch, 3) is not None


def _flatbuffer_field(data: bytes, table: int, index: int) -> int | None:
    """Where the table's field lies; None where it is not set."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, fields)[0]
    entry = 4 + 2 * index
    offset = struct.unpack_from("<H", data, fields + entry)[0] if entry < size else 0
    return table + offset if offset else None


def _decompress(body: bytes, max_bytes: int) -> pa.Buffer:
    if not body:
        raise MalformedBatch("the body is empty")
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            raw = stream.read_buffer(max_bytes + 1)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MalformedBatch(f"not a zstd body: {error}") from error
    if raw.size > max_bytes:
        raise TooLarge(f"the body decompresses to more than {max_bytes} bytes: send smaller batches")
    return raw


def _name_and_protocol(schema: pa.Schema) -> tuple[str, int]:
    metadata = schema.metadata or {}
    name: str = metadata.get(b"table", b"").decode(errors="replace")
    version: str = metadata.get(b"protocol", b"").decode(errors="replace")
    if not (version.isascii() and version.isdigit() and len(version) < 10 and int(version) > 0):
        raise MalformedBatch("the schema's metadata lacks the protocol version", table=name or None)
    if int(version) > PROTOCOL:
        raise UnknownVersion(
            f"the batch speaks protocol {version}, this server {PROTOCOL}: update entrostat on the server"
        )
    if name not in TABLES:
        raise MalformedBatch(f"unknown table {name!r}: the tables are {sorted(TABLES)}")
    return name, int(version)


def _with_newer_columns(name: str, table: pa.Table) -> pa.Table:
    """``table`` with the columns that a producer of an older protocol does not know yet, all null."""
    for field in TABLES[name]:
        if field.name not in table.schema.names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table


def _check_schema(name: str, found: pa.Schema, protocol: int = PROTOCOL) -> None:
    schema = TABLES[name]
    for column in found.names:
        if column not in schema.names:
            raise MalformedBatch(f"unknown column: the columns are {schema.names}", name, column)
    for field in schema:
        times = found.names.count(field.name)
        if times == 0 and since(field) > protocol:
            continue
        if times != 1:
            reason = "the column is missing" if times == 0 else f"the column is there {times} times"
            raise MalformedBatch(reason, name, field.name)
        kind = found.field(field.name).type
        if kind != field.type:
            raise MalformedBatch(f"the type is {kind}, it must be {field.type}", name, field.name)


def check_table(name: str, table: pa.Table) -> pa.Table:
    """``table`` with its columns in order, after every check that a batch must pass.

    Raises:
        MalformedBatch: with the table, the column and the reason.
    """
    _check_schema(name, table.schema)
    try:
        table.validate(full=True)  # first: until then not even a null count can be trusted
    except pa.ArrowException as error:
        raise MalformedBatch(f"the rows are not consistent: {error}", name) from error
    for field in TABLES[name]:
        nulls = 0 if field.nullable else table[field.name].null_count
        if nulls:
            raise MalformedBatch(f"{nulls} values are null, none may be", name, field.name)
    check_values(name, table)
    if name == "step_metric":
        _check_states(table)
    return table.select(TABLES[name].names)


def _check_states(table: pa.Table) -> None:
    if any(chunk.flatten().null_count for chunk in table["state"].chunks):
        raise MalformedBatch("a state holds a null", "step_metric", "state")
    lengths = pc.list_value_length(table["state"])
    for rule in pc.unique(table["merge"]).to_pylist():
        length = STATE_LENGTH.get(rule)
        if length is None:
            raise MalformedBatch(
                f"unknown merge rule {rule!r}: the rules are {sorted(STATE_LENGTH)}", "step_metric", "merge"
            )
        for found in pc.unique(lengths.filter(pc.equal(table["merge"], rule))).to_pylist():
            if found != length:
                raise MalformedBatch(f"a {rule!r} has {length} numbers, found {found}", "step_metric", "state")


def decode_json(body: bytes) -> Tables:
    """The tables of a JSON body: ``{"step_metric": [{"step": 3, "name": "loss", "value": 0.5}], ...}``.

    A ``step_metric`` row may give ``value`` in the place of ``merge`` and ``state``.

    Raises:
        MalformedBatch: as ``decode``.
    """
    try:
        document = strict_json.loads(body)
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
        except (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise MalformedBatch(f"must be {field.type}: {error}", name, field.name) from error
    return check_table(name, pa.table(columns, names=schema.names))


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and any(isinstance(v, str) for v in values):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_integer(kind):
        _refuse_fractions(values)
    if pa.types.is_list(kind) and pa.types.is_integer(kind.value_type):
        _refuse_fractions(v for value in values if isinstance(value, list) for v in value)
    return pa.array(values, kind)


def _refuse_fractions(values: Iterable[Any]) -> None:
    for value in values:  # Arrow would cut 1.5 down to 1 without a word
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(f"{value} is not a whole number")


def _plain_metric(row: dict[str, Any]) -> dict[str, Any]:
    if "value" not in row:
        return row
    rest = {key: value for key, value in row.items() if key != "value"}
    return {"merge": "last", "state": [row["value"]], **rest}
