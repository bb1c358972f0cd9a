"""What is in a stream's directory, by name, and how it is written: whole or not at all."""

import contextlib
import os
import re
import struct
from pathlib import Path

OPEN, LOCK, REJECTED, NEXT, BATCH, TAIL = "open.json", "lock", "rejected", "next", ".batch", ".tail"
_NUMBERED = re.compile(r"[0-9]{12}\.(batch|tail)")
_COUNT = struct.Struct("<Q")


def batch_file(stream: Path, seq: int) -> Path:
    """Where a batch is."""
    return stream / f"{seq:012d}{BATCH}"


def tail_file(stream: Path, seq: int) -> Path:
    """Where rows are that wait for their batch."""
    return stream / f"{seq:012d}{TAIL}"


def numbered(stream: Path, suffix: str) -> dict[int, int]:
    """Number -> bytes of the files of a kind."""
    found: dict[int, int] = {}
    for entry in os.scandir(stream) if stream.is_dir() else ():
        if _NUMBERED.fullmatch(entry.name) and entry.name.endswith(suffix):
            with contextlib.suppress(FileNotFoundError):  # sent and deleted while we look
                found[int(entry.name[:12])] = entry.stat().st_size
    return found


def open_count(stream: Path) -> int:
    """A descriptor to ``set_count`` with; the count is 0. Raises OSError."""
    fd = os.open(stream / NEXT, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    os.write(fd, _COUNT.pack(0))
    return fd


def set_count(fd: int, next_seq: int) -> None:
    """Note the number of the next batch. Raises OSError."""
    os.pwrite(fd, _COUNT.pack(next_seq), 0)


def counted(stream: Path) -> int:
    """The number of the next batch as it was noted last; 0 where it was not."""
    with contextlib.suppress(OSError, struct.error):
        count: int = _COUNT.unpack((stream / NEXT).read_bytes())[0]
        return count
    return 0


def write_whole(path: Path, body: bytes) -> None:
    """A file that is there whole or not at all, and on the disk when this returns. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """What was renamed in it stays so."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
