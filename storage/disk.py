"""The disk under the database: how much is free, and the floor below which no batch is taken."""

import os
from pathlib import Path

import duckdb

from entrostat.storage.errors import DiskFull
from entrostat.storage.files import wal_of

_RETRY_AFTER_S = 10.0
_FULL = ("no space left on device", "disk quota exceeded", "file too large")


class Disk:
    """The file system that holds a database file.

    The engine stops for good when the disk is full while it folds its log into the file (a checkpoint); a floor keeps
    it from getting there.

    Args:
        database: the file, or ``:memory:``, which needs no disk.
        min_free_bytes: the floor.
    """

    def __init__(self, database: str, min_free_bytes: int) -> None:
        self._path = None if database == ":memory:" else Path(database)
        self.min_free_bytes, self._turned_away_bytes = min_free_bytes, 0

    @property
    def free_bytes(self) -> int | None:
        """What this process may still write there; None where no disk is used, or it cannot be asked."""
        if self._path is None:
            return None
        try:
            found = os.statvfs(self._path.parent)
        except OSError:  # the writer will meet the same, and say so
            return None
        return found.f_bavail * found.f_frsize

    def problem(self, promised_bytes: int = 0) -> str | None:
        """Why the batch that was last refused, or any, would be refused; None while there is room.

        Args:
            promised_bytes: what was taken already and is not on the disk yet.
        """
        found = self._shortage(promised_bytes + self._turned_away_bytes)
        if found is None:
            self._turned_away_bytes = 0
        return found

    def check(self, promised_bytes: int, batch_bytes: int) -> None:
        """Raises DiskFull where there is no room for a batch beside what was promised."""
        shortage = self._shortage(promised_bytes + batch_bytes)
        if shortage:
            self._turned_away_bytes = batch_bytes
            raise DiskFull(shortage, _RETRY_AFTER_S)

    def _shortage(self, coming_bytes: int) -> str | None:
        free = self.free_bytes
        if free is None or free - coming_bytes >= self.min_free_bytes:
            return None
        beside = f" beside the {coming_bytes / 2**20:.1f} that come" if coming_bytes else ""
        return (
            f"{free / 2**20:.1f} MiB are free on the server's disk, {self.min_free_bytes / 2**20:g} must stay so "
            f"(min_free_mb){beside}: make room; batches are taken again then"
        )

    @property
    def database_bytes(self) -> int:
        """Size of the database file."""
        return _size(self._path)

    @property
    def log_bytes(self) -> int:
        """Size of its write-ahead log."""
        return _size(wal_of(self._path)) if self._path else 0


def disk_full(error: BaseException) -> DiskFull | None:
    """``error`` as ``DiskFull``, where it is the engine's word for a disk without room."""
    text = str(error)
    if not isinstance(error, duckdb.Error) or not any(said in text.lower() for said in _FULL):
        return None
    return DiskFull(f"the server's disk is full ({text.splitlines()[0]}): make room, then send again", _RETRY_AFTER_S)


def _size(path: Path | None) -> int:
    try:
        return path.stat().st_size if path else 0
    except OSError:
        return 0
