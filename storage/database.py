"""Opening the database file, making its tables and views, and closing every door that SQL could leave by."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from entrostat.storage import schema, views
from entrostat.storage.errors import StorageError


class Database:
    """One open DuckDB file. One process owns it; cursors give concurrency inside the process.

    Args:
        path: the file, or ``:memory:``.
        memory_limit_mb: most memory the engine may take, in MiB.
        num_threads: threads of the engine; None for one a core.
        max_temp_mb: most disk for queries that do not fit in memory, in MiB.

    Raises:
        StorageError: the file cannot be opened, is held by another process, or is of a newer entrostat.
    """

    def __init__(
        self, path: str, memory_limit_mb: int = 4096, num_threads: int | None = None, max_temp_mb: int = 8192
    ) -> None:
        self.path = path
        self.failure: str | None = None
        """Why the engine does nothing any more; None while all is well."""
        self._connection = _connect(path)
        self._lock = threading.Lock()
        try:
            _make(self._connection)
            _close_the_door(self._connection, memory_limit_mb, num_threads, max_temp_mb)
        except BaseException:
            self._connection.close()
            raise

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same database, for one thread."""
        with self._lock:
            return self._connection.cursor()

    @contextlib.contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor in a read-only transaction: everything read in it is of one moment."""
        cursor = self.cursor()
        try:
            with self.noting_failure():
                cursor.execute("begin transaction read only")
                yield cursor
        finally:
            cursor.close()

    @contextlib.contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Notices when the engine declares itself broken: it refuses everything from there on, whoever asks."""
        try:
            yield
        except (duckdb.FatalException, duckdb.InternalException) as error:
            self.failure = self.failure or str(error).splitlines()[0]
            raise

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of one of our own SELECTs."""
        with self.reading() as cursor:
            return cursor.execute(sql, list(parameters)).fetchall()

    def table(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """The same as Arrow."""
        with self.reading() as cursor:
            return cursor.sql(sql, params=list(parameters)).to_arrow_table()

    def close(self) -> None:
        """Fold the log into the file and let go of it."""
        with self._lock:
            with contextlib.suppress(duckdb.Error):  # nothing is lost without: the log is replayed at the next opening
                self._connection.execute("checkpoint")
            self._connection.close()


def path_of(url: str) -> str:
    """The file of a store's URL: ``duckdb:///absolute/path``, ``duckdb:relative/path`` or ``duckdb::memory:``.

    Raises:
        StorageError: another kind of store.
    """
    kind, _, rest = url.partition(":")
    if kind != "duckdb" or not rest:
        raise StorageError(f"no store for {url!r}: write it as duckdb:///path/to/file")
    return rest.removeprefix("//") if rest.startswith("//") else rest


def _connect(path: str) -> duckdb.DuckDBPyConnection:
    if path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        return duckdb.connect(
            path, config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
    except duckdb.IOException as error:
        if "lock" in str(error).lower():
            raise StorageError(
                f"another process holds {path}: stop the other server, or give this one its own --data ({error})"
            ) from error
        raise StorageError(f"cannot open {path}: {error}") from error
    except duckdb.Error as error:
        raise StorageError(f"cannot open {path}: {error}") from error


def _make(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("create schema if not exists raw")
    connection.execute("begin")
    existing = _raw_tables(connection)
    if "meta" in existing:
        found = connection.execute("select schema_version from raw.meta").fetchall()[0][0]
        if found > schema.SCHEMA_VERSION:
            raise StorageError(
                f"the database has tables of version {found}, this entrostat knows {schema.SCHEMA_VERSION}: update it"
            )
    for table in schema.ALL_TABLES:  # a file of an older entrostat lacks the tables that came since
        for statement in schema.ddl(table) if table.name not in existing else ():
            connection.execute(statement)
    if "meta" not in existing:
        connection.execute("insert into raw.meta values (?)", [schema.SCHEMA_VERSION])
        connection.executemany("insert into raw.bin values (?, ?, ?)", schema.bin_rows())
    for statement in views.statements():
        connection.execute(statement)
    connection.execute("commit")


def _raw_tables(connection: duckdb.DuckDBPyConnection) -> set[str]:
    rows = connection.execute("select table_name from duckdb_tables() where schema_name = 'raw'").fetchall()
    return {row[0] for row in rows}


def _close_the_door(
    connection: duckdb.DuckDBPyConnection, memory_limit_mb: int, num_threads: int | None, max_temp_mb: int
) -> None:
    settings = [
        "enable_external_access = false",
        "allow_community_extensions = false",
        "allow_persistent_secrets = false",
        "python_enable_replacements = false",
        f"memory_limit = '{int(memory_limit_mb)}MiB'",
        f"max_temp_directory_size = '{int(max_temp_mb)}MiB'",
    ]
    if num_threads is not None:
        settings.append(f"threads = {int(num_threads)}")
    for setting in [*settings, "lock_configuration = true"]:  # the last one holds all the others
        connection.execute(f"set {setting}")
