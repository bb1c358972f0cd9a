"""Opening the database file, making its tables and views, and closing every door that SQL could leave by."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from entrostat.storage import files, migrations, schema, views
from entrostat.storage.errors import DatabaseHeld, StorageError
from entrostat.wire.logs import event

_log = logging.getLogger(__name__)

IN_MEMORY = ":memory:"
_CATALOG, _ENGINES_OWN = "entrostat", "memory"
"""What the engine calls an attached file, and the empty database that it begins with."""
BACKUPS = "backups"
"""Folder beside the file, for copies of it."""


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
        StorageError: the file cannot be opened or migrated, is held by another process, or is of a newer entrostat.
    """

    def __init__(
        self, path: str, memory_limit_mb: int = 4096, num_threads: int | None = None, max_temp_mb: int = 8192
    ) -> None:
        self.path = path
        self.failure: str | None = None
        """Why the engine does nothing any more; None while all is well."""
        started, replayed_bytes = time.perf_counter(), _log_bytes(path)
        self._connection = _connect(path)
        self._file = None if path == IN_MEMORY else files.OpenFile(Path(path))
        self._lock = threading.Lock()
        try:
            with explained(path):
                self._make()
                close_the_door(self._connection, memory_limit_mb, num_threads, max_temp_mb)
                newest = self._connection.execute("select max(received) from raw.batch").fetchall()[0][0]
        except BaseException:
            self._let_go()
            raise
        self.opening = Opening(time.perf_counter() - started, replayed_bytes, newest)

    @property
    def file(self) -> Path | None:
        """Where it is; None in memory."""
        return None if self._file is None else Path(self.path)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same database, for one thread."""
        with self._lock:
            cursor = self._connection.cursor()
            if self.path != IN_MEMORY:
                cursor.execute(f"use {_CATALOG}")  # cursors share the database, not which one they look at
            return cursor

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
            self._let_go()

    def copy_to(self, target: Path) -> None:
        """Copy the file, and what is left of its log, to ``target``; the caller sees that nobody writes meanwhile.

        Raises:
            StorageError: the database is in memory.
        """
        if self._file is None:
            raise StorageError("a database in memory has no file to copy: give the server a store on disk")
        self._file.copy_to(target)
        if (wal := files.wal_of(Path(self.path))).exists():
            files.copy(wal, files.wal_of(target))

    def _let_go(self) -> None:
        self._connection.close()
        if self._file is not None:
            self._file.close()

    def _make(self) -> None:
        found = migrations.version_of(self._connection)
        if found is not None and found != schema.SCHEMA_VERSION:
            migrations.refuse_newer(found)
            self._keep_a_copy(found)
        self._connection.execute("begin")
        _make(self._connection, found)
        self._connection.execute("commit")

    def _keep_a_copy(self, version: int) -> None:
        """Of a file that is about to be migrated. Without room for it the migration goes on: it is all or nothing."""
        if self._file is None:
            return
        folder = Path(self.path).parent / BACKUPS
        target = folder / f"entrostat-version-{version}.duckdb"  # one, however often it is tried
        try:
            folder.mkdir(exist_ok=True)
            self._connection.execute("checkpoint")
            files.refuse_without_room(folder, files.size_of(Path(self.path)), f"a copy of {self.path}")
            with files.written_aside(target) as partial:
                self.copy_to(partial)
        except (StorageError, OSError) as error:
            event(_log, logging.WARNING, "migrates", from_version=version, message=f"without keeping a copy: {error}")
        else:
            event(_log, logging.WARNING, "migrates", from_version=version, copy=str(target))


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
        if path != IN_MEMORY:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder of {path} ({error}): give another --data") from error
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
    }  # fmt: skip
    if path == IN_MEMORY:
        return duckdb.connect(path, config=config)
    connection = duckdb.connect(config=config | {"temp_directory": f"{path}.tmp"})
    try:
        with explained(path):
            _attach(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _attach(connection: duckdb.DuckDBPyConnection, path: str) -> None:
    """The file as the only database there is: what is not attached cannot be told the size of its row groups."""
    options = f"row_group_size {schema.ROW_GROUP_ROWS}"
    connection.execute(f"attach {schema.quoted(path)} as {_CATALOG} ({options})")
    connection.execute(f"use {_CATALOG}")
    connection.execute(f"detach {_ENGINES_OWN}")


@contextlib.contextmanager
def explained(path: Path | str) -> Iterator[None]:
    """What the engine says of a file that cannot be opened or read, as a ``StorageError`` that says what to do."""
    try:
        yield
    except duckdb.Error as error:
        said = str(error).lower()
        if "could not set lock" in said:  # the words "block" and "lock" are in what it says of damage, or in the path
            raise DatabaseHeld(
                f"another process holds {path}: stop the other server, or give this one its own --data ({error})"
            ) from error
        if "unique file handle conflict" in said:
            raise DatabaseHeld(f"this process has {path} open already: close that first ({error})") from error
        if "permission denied" in said:
            raise StorageError(
                f"{path} cannot be written by this user: give it the folder and its files, or give another --data "
                f"({error})"
            ) from error
        raise StorageError(
            f"cannot read {path}: {error}. If it is damaged, put a backup in its place (entrostat restore)"
        ) from error


def _log_bytes(path: str) -> int:
    try:
        return 0 if path == IN_MEMORY else files.wal_of(Path(path)).stat().st_size
    except OSError:
        return 0


def _make(connection: duckdb.DuckDBPyConnection, found: int | None) -> None:
    if found is None:
        connection.execute("create schema if not exists raw")
        for statement in (statement for table in schema.ALL_TABLES for statement in schema.ddl(table)):
            connection.execute(statement)
        connection.execute("insert into raw.meta values (?)", [schema.SCHEMA_VERSION])
        connection.executemany("insert into raw.bin values (?, ?, ?)", schema.bin_rows())
    elif found < schema.SCHEMA_VERSION:
        migrations.migrate(connection, found)
    else:
        migrations.refuse_incomplete(connection)
    for statement in views.statements():
        connection.execute(statement)


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
