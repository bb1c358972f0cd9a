"""Copies of the database, made while it is written.

The writer's thread folds its log into the file and holds still for the copy; so a copy is what was committed at one
moment, whole batches with their ledger. Everything else (fsync, the look into the copy) happens while batches come in.
"""

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from entrostat.storage import files, migrations
from entrostat.storage.database import BACKUPS, Database, explained
from entrostat.storage.errors import Busy, StorageError
from entrostat.storage.writer import Writer
from entrostat.wire.errors import NotFound

_NAME = re.compile(r"entrostat-(\d{8}T\d{6}\.\d{6}Z|version-\d+)\.duckdb")


@dataclass(frozen=True, slots=True)
class Contents:
    """What a database file holds: version of its tables, runs, batches of the ledger."""

    schema_version: int
    num_runs: int
    num_batches: int


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy in the folder of copies.

    Args:
        created: when it was whole, UTC.
    """

    name: str
    created: datetime
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MadeBackup:
    """A new copy, and what it took.

    Args:
        held_s: so long no batch could be written.
    """

    backup: Backup
    contents: Contents
    held_s: float


class Backups:
    """The copies of one database, in the folder ``backups`` beside it. Names are the server's own, made of the time."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database, self._writer = database, writer
        self._one_at_a_time = threading.Lock()
        self._discard_halves()

    def make(self) -> MadeBackup:
        """Copy the database as it is now.

        Raises:
            NoRoom: the disk has no room; nothing was begun.
            Busy: another copy is being made.
            StorageError: the database is in memory, or the copy cannot be opened.
        """
        source, folder = self._source(), self._folder()
        if not self._one_at_a_time.acquire(blocking=False):
            raise Busy("a backup is being made: ask again when it is done", retry_after_s=5.0)
        try:
            folder.mkdir(exist_ok=True)
            self._discard_halves()
            files.refuse_without_room(folder, files.size_of(source), "a backup")
            target = folder / f"entrostat-{files.stamp()}.duckdb"
            with files.written_aside(target) as partial:
                held_s = self._writer.hold_still(lambda cursor: self._copy(cursor, partial))
                contents = look_into(partial)
            return MadeBackup(_described(target), contents, held_s)
        finally:
            self._one_at_a_time.release()

    def _copy(self, cursor: duckdb.DuckDBPyConnection, target: Path) -> float:
        began = time.perf_counter()
        cursor.execute("checkpoint")
        self._database.copy_to(target)
        return time.perf_counter() - began

    def all(self) -> list[Backup]:
        """The copies that are whole, newest first."""
        if self._database.file is None or not self._folder().is_dir():
            return []
        found = [_described(path) for path in self._folder().iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=lambda backup: backup.created, reverse=True)

    def path(self, name: str) -> Path:
        """Where a copy is. Raises NotFound; ``name`` is looked up, never used as a path."""
        if all(backup.name != name for backup in self.all()):
            raise NotFound(f"no backup {name!r}: GET /v1/backups lists them")
        return self._folder() / name

    def remove(self, name: str) -> None:
        """Remove a copy. Raises NotFound."""
        self.path(name).unlink(missing_ok=True)

    def _source(self) -> Path:
        if self._database.file is None:
            raise StorageError("a database in memory has no file to copy: give the server a store on disk")
        return self._database.file

    def _folder(self) -> Path:
        return self._source().parent / BACKUPS

    def _discard_halves(self) -> None:
        """What a killed server left of a copy."""
        if self._database.file is None or not self._folder().is_dir():
            return
        for path in self._folder().glob(f"*{files.PARTIAL}"):
            if _NAME.fullmatch(path.name.removesuffix(files.PARTIAL)):
                files.discard(path)


def look_into(path: Path) -> Contents:
    """Open a database file that no server has open, fold in what is left of its log, and count.

    Raises:
        StorageError: it is not a database of ours, of a newer version, or damaged.
    """
    with opened(path, read_only=not files.wal_of(path).exists()) as connection:
        version = migrations.version_of(connection)
        if version is None:
            raise StorageError(f"{path} is not a database of entrostat")
        migrations.refuse_newer(version)
        runs, batches = connection.execute(
            "select (select count(*) from raw.run), (select count(*) from raw.batch)"
        ).fetchall()[0]
        return Contents(version, runs, batches)


@contextlib.contextmanager
def opened(path: Path, read_only: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database file as it is: nothing is migrated, no view is made.

    Raises:
        StorageError: it cannot be opened, or the block reads what cannot be read.
        DatabaseHeld: another process has it open.
    """
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
    }  # fmt: skip
    with explained(path):
        connection = duckdb.connect(str(path), read_only=read_only, config=config)
        try:
            yield connection
        finally:
            connection.close()


def _described(path: Path) -> Backup:
    status = path.stat()
    return Backup(path.name, datetime.fromtimestamp(status.st_mtime, UTC), status.st_size)
