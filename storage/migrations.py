"""From the tables of an earlier version to today's, in the order of the list, all in the transaction that opens a file.

A step is frozen when it is committed: it says what was changed then, in SQL of its own, and never asks ``schema.py``,
which goes on changing. A column is added at the end of its table, there and in ``schema.py``, so that a migrated file
and a new one are the same.
"""

from dataclasses import dataclass

import duckdb

from entrostat.storage import schema
from entrostat.storage.errors import StorageError


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the tables.

    Args:
        version: of the tables after it.
        change: what it does, in a few words.
        statements: SQL, without comments of columns: those are written anew after every migration.
    """

    version: int
    change: str
    statements: tuple[str, ...]


STEPS = (
    Step(
        2,
        "tokens have their log-prob under the engine that sampled them",
        ("alter table raw.token_row add column rollout_logp float",),
    ),
    Step(
        3,
        "what was removed is recorded",
        (
            "create table raw.removal (run integer, run_id varchar not null, stream integer, what varchar not null, "
            "num_rows bigint not null, from_step integer, to_step integer, removed timestamp not null, "
            "reason varchar not null)",
        ),
    ),
    Step(
        4,
        "who changed what is on record",
        (
            "create table raw.audit (time timestamp not null, who varchar, said varchar, address varchar, "
            "action varchar not null, run_id varchar, name varchar, detail varchar)",
        ),
    ),
)


def version_of(connection: duckdb.DuckDBPyConnection) -> int | None:
    """Version of the tables of a file; None where it has none yet.

    Raises:
        StorageError: it has tables, and does not say of which version.
    """
    if "meta" not in raw_tables(connection):
        return None
    found = connection.execute("select schema_version from raw.meta").fetchall()
    if len(found) != 1:
        raise StorageError(f"raw.meta has {len(found)} rows, it must have 1: restore a backup (entrostat restore)")
    return int(found[0][0])


def refuse_newer(found: int) -> None:
    """Raises StorageError where a file is of a newer entrostat."""
    if found > schema.SCHEMA_VERSION:
        raise StorageError(
            f"the database has tables of version {found}, this entrostat knows {schema.SCHEMA_VERSION}: update it"
        )


def migrate(connection: duckdb.DuckDBPyConnection, found: int) -> None:
    """Bring tables of version ``found`` to today's; the caller's transaction makes it all or nothing.

    Raises:
        StorageError: a step cannot be done; names it.
    """
    for step in (s for s in STEPS if s.version > found):
        try:
            for statement in step.statements:
                connection.execute(statement)
        except duckdb.Error as error:
            raise StorageError(
                f"the tables could not be brought from version {found} to {step.version} ({step.change}): "
                f"{str(error).splitlines()[0]}. The file is as it was"
            ) from error
    refuse_incomplete(connection)
    for table in schema.ALL_TABLES:
        for statement in schema.comments(table):
            connection.execute(statement)
    connection.execute("update raw.meta set schema_version = ?", [schema.SCHEMA_VERSION])


def refuse_incomplete(connection: duckdb.DuckDBPyConnection) -> None:
    """Raises StorageError where a table is missing that a file of today's version has."""
    if missing := {table.name for table in schema.ALL_TABLES} - raw_tables(connection):
        raise StorageError(f"the database lacks the tables {sorted(missing)}: restore a backup (entrostat restore)")


def raw_tables(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Names of the tables of the schema ``raw``."""
    rows = connection.execute("select table_name from duckdb_tables() where schema_name = 'raw'").fetchall()
    return {row[0] for row in rows}
