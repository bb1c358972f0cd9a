"""The database's files: copying them while the engine has them open, room on the disk, what survives a power cut."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from entrostat.storage.errors import NoRoom, StorageError

SPARE_BYTES = 64 * 2**20
"""A copy leaves so much of the disk free: the next batches have to go somewhere."""
_PIECE_BYTES = 64 * 2**20


class OpenFile:
    """A second descriptor of the database file, open for as long as the engine has the file open.

    POSIX locks belong to the process: closing *any* descriptor of a file drops the lock by which the engine keeps other
    processes out of it. So the file is opened for copying once, and closed only after the engine's own descriptor.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def copy_to(self, target: Path) -> int:
        """Write the file's bytes to ``target``, which must not be there; returns how many. Nobody may write meanwhile.

        Where the file system can share blocks between files (btrfs, xfs) nothing is copied.
        """
        if self._descriptor is None:
            raise StorageError("the database is closed: nothing can be copied")
        with target.open("xb") as out:
            return _copied(self._descriptor, out.fileno())

    def close(self) -> None:
        """Let go of it; the engine has closed the file before. Repeating it is harmless."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def copy(source: Path, target: Path) -> int:
    """As ``OpenFile.copy_to``, of a file that no engine of this process has open; durable when it returns."""
    with source.open("rb") as read, target.open("xb") as out:
        num_bytes = _copied(read.fileno(), out.fileno())
        os.fsync(out.fileno())
    return num_bytes


def _copied(source: int, target: int) -> int:
    size, done = os.fstat(source).st_size, 0
    while done < size:
        done += _copy_piece(source, target, done, min(_PIECE_BYTES, size - done))
    return size


def _copy_piece(source: int, target: int, offset: int, length: int) -> int:
    if hasattr(os, "copy_file_range"):  # Linux
        with contextlib.suppress(OSError):  # other file systems, older kernels: read and write do what it cannot
            if moved := os.copy_file_range(source, target, length, offset, offset):
                return moved
    return os.pwrite(target, os.pread(source, min(length, 2**20), offset), offset)


def wal_of(path: Path) -> Path:
    """The log beside a database file."""
    return path.with_name(path.name + ".wal")


def size_of(path: Path) -> int:
    """Bytes of a database: its file and its log."""
    return sum(p.stat().st_size for p in (path, wal_of(path)) if p.exists())


def refuse_without_room(folder: Path, num_bytes: int, what: str) -> None:
    """Raises NoRoom, with the numbers, where ``folder`` cannot take ``num_bytes`` and keep ``SPARE_BYTES`` free."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes + SPARE_BYTES:
        raise NoRoom(
            f"{what} needs {_mib(num_bytes)} MiB and {_mib(SPARE_BYTES)} MiB to spare, {folder} has {_mib(free)} MiB "
            "free: remove old backups, or give the data folder a larger disk"
        )


def make_durable(path: Path) -> None:
    """Wait until a file, and its name in its folder, survive a power cut."""
    for place in (path, path.parent):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """A name to write under: the file becomes ``target``, durably, when all went well, and else it is removed."""
    partial = target.with_name(target.name + PARTIAL)
    discard(partial)
    try:
        yield partial
        make_durable(partial)
        partial.rename(target)
        make_durable(target)
    except OSError as error:
        discard(partial)
        kind = NoRoom if error.errno == errno.ENOSPC else StorageError
        raise kind(f"{target} could not be written: {error}") from error
    except BaseException:
        discard(partial)
        raise


PARTIAL = ".partial"
"""How the name of a copy ends that is not whole."""


def discard(path: Path) -> None:
    """Remove a database file and its log, if they are there."""
    for place in (path, wal_of(path)):
        place.unlink(missing_ok=True)


def stamp() -> str:
    """Now, UTC, as a part of a file's name; names sort by time."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f}"
