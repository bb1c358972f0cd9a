"""Opening the database file, making its tables and views, and closing every door that SQL could leave by."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from entrostat.storage import schema, views
from entrostat.storage.disk import log_of
from entrostat.storage.errors import StorageError


@dataclass(frozen=True, slots=True)
class Opening:
    """How a database was found.

    Args:
        seconds: to open it, the log's replay included.
        replayed_bytes: size of the log that was left; 0 where it was closed cleanly, or is new.
        newest: when the newest batch in it came, UTC, without a zone; None: there is none.
    """

    seconds: float
    replayed_bytes: int
    newest: datetime | None


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
        started, replayed_bytes = time.perf_counter(), _log_bytes(path)
        self._connection = _connect(path)
        self._lock = threading.Lock()
        try:
            _make(self._connection)
            close_the_door(self._connection, memory_limit_mb, num_threads, max_temp_mb)
            newest = self._connection.execute("select max(received) from raw.batch").fetchall()[0][0]
        except duckdb.Error as error:
            self._connection.close()
            raise StorageError(f"cannot use {path}: {error}") from error
        except BaseException:
            self._connection.close()
            raise
        self.opening = Opening(time.perf_counter() - started, replayed_bytes, newest)

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
    try:
        if path != ":memory:":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder of {path} ({error}): give another --data") from error
    try:
        return duckdb.connect(
            path, config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
    except duckdb.IOException as error:
        if "could not set lock" in str(error).lower():  # not just "lock", which may be in the path
            raise StorageError(
                f"another process holds {path}: stop the other server, or give this one its own --data ({error})"
            ) from error
        if "permission denied" in str(error).lower():
            raise StorageError(
                f"{path} cannot be written by this user: give it the folder and its files, or give another --data "
                f"({error})"
            ) from error
        raise StorageError(f"cannot open {path}: {error}") from error
    except duckdb.Error as error:
        raise StorageError(f"cannot open {path}: {error}") from error


def _log_bytes(path: str) -> int:
    try:
        return 0 if path == ":memory:" else log_of(Path(path)).stat().st_size
    except OSError:
        return 0


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


def close_the_door(
    connection: duckdb.DuckDBPyConnection, memory_limit_mb: int, num_threads: int | None, max_temp_mb: int
) -> None:
    """No statement after this reaches a file, or changes a setting."""
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
