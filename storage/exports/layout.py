"""What an export holds: one Parquet file for each table that has a run's rows, with the table's own columns."""

import pyarrow as pa

from entrostat.storage import schema
from entrostat.wire.archive import SUFFIX, FileEntry, Manifest
from entrostat.wire.errors import MalformedExport, UnknownVersion

TABLES: dict[str, schema.Table] = {t.name: t for t in schema.ALL_TABLES if "run" in t.column_names}
"""Every table that a run has rows in. What is not of a run is left out: the rules, the edges of bins."""
ROW_TABLES = {table.name: wire_name for wire_name, table in schema.ROW_TABLES.items()}
"""Of these, the ones that hold what was sent -> their table of the wire."""
ROWS_A_GROUP = 245_760
"""Rows of a Parquet row group: two of DuckDB's."""


def arrow_schema(table: schema.Table) -> pa.Schema:
    """The columns of a file."""
    return pa.schema([pa.field(c.name, schema.arrow_type(c.kind), c.nullable) for c in table.columns])


def file_name(table: schema.Table) -> str:
    """The file of a table."""
    return table.name + SUFFIX


def known_entries(manifest: Manifest) -> dict[str, FileEntry]:
    """Table -> its file. An older export may lack tables that came since.

    Raises:
        UnknownVersion: the tables are of a newer version.
        MalformedExport: a table is unknown, or missing.
    """
    _check_version(manifest)
    found = {entry.table: entry for entry in manifest.files}
    if unknown := sorted(set(found) - set(TABLES)):
        raise MalformedExport(f"unknown table {unknown[0]!r}: the tables are {sorted(TABLES)}")
    if manifest.schema_version == schema.SCHEMA_VERSION and (missing := sorted(set(TABLES) - set(found))):
        raise MalformedExport("the manifest does not name it", missing[0] + SUFFIX)
    return found


def _check_version(manifest: Manifest) -> None:
    if manifest.schema_version > schema.SCHEMA_VERSION:
        raise UnknownVersion(
            f"the export has tables of version {manifest.schema_version} (entrostat {manifest.entrostat}), this "
            f"entrostat knows {schema.SCHEMA_VERSION}: update it"
        )


def check_columns(table: schema.Table, found: pa.Schema, is_older: bool) -> None:
    """Hold a file's columns to the table's; only an older export may lack columns, and only those that may be null.

    Raises:
        MalformedExport: names the column.
    """
    wanted = arrow_schema(table)
    name = file_name(table)
    if len(set(found.names)) != len(found.names):
        raise MalformedExport("has a column twice", name)
    for column in found.names:
        if column not in wanted.names:
            raise MalformedExport(f"unknown column {column[:100]!r}: the columns are {wanted.names}", name)
    for field in wanted:
        if field.name not in found.names:
            if is_older and field.nullable:
                continue
            raise MalformedExport(f"the column {field.name!r} is missing", name)
        kind = found.field(field.name).type
        if not _is_same(kind, field.type):
            raise MalformedExport(f"the column {field.name!r} is {kind}, it must be {field.type}", name)


def _is_same(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):  # the name of the items does not matter
        return bool(pa.types.is_list(found) and found.value_type == wanted.value_type)
    return bool(found == wanted)
