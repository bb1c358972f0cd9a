"""Batches on disk until the server has them: ``<root>/<run_id>/<stream_id>/<seq>.batch``, beside ``open.json``.

A batch appears whole or not at all: temporary name, fsync, rename, fsync of the directory. Until then its rows are in
``<seq>.tail`` (``wire/tail.py``), and steps that have no rows yet in ``*.step`` (``wire/handover.py``): of both,
``adopt`` makes the batches that a dead process did not come to. ``next`` is the number of the next batch. A live
process holds a lock on the stream's directory, so ``entrostat push`` leaves it alone. Names come from ``RunId``,
``StreamId`` and integers only; nothing from a server or a batch is ever used as a path.
"""

import contextlib
import fcntl
import json
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from entrostat.wire import stream_files, tail
from entrostat.wire.errors import SpoolBusy, SpoolError
from entrostat.wire.handover import left_in
from entrostat.wire.messages import RunId, StreamId, StreamOpen
from entrostat.wire.recovery import Recovery, Restore
from entrostat.wire.stream_files import (
    BATCH,
    LOCK,
    OPEN,
    REJECTED,
    TAIL,
    batch_file,
    numbered,
    sync_directory,
    tail_file,
    write_whole,
)  # fmt: skip

_RUN_ID: TypeAdapter[str] = TypeAdapter(RunId)
_STREAM_ID: TypeAdapter[str] = TypeAdapter(StreamId)


class SpoolStream:
    """One stream's directory, held by this process until ``release``. Not for use by two threads on the same batch.

    Make one with ``create`` (a new stream) or ``adopt`` (what a dead process left behind).
    """

    def __init__(self, path: Path, lock_fd: int, opening: StreamOpen) -> None:
        self.path, self.opening, self.stream_id = path, opening, path.name
        self._lock_fd: int | None = lock_fd
        self._next_fd: int | None = None
        self.problems: list[str] = []
        _HELD.add(self)

    @classmethod
    def create(cls, root: Path, opening: StreamOpen, stream_id: str) -> Self:
        """A new stream's directory, with its ``open.json``.

        Raises:
            SpoolError: the directory cannot be made or written, or the stream has one already.
            SpoolBusy: a live process holds it.
        """
        path = root / _valid(_RUN_ID, opening.run_id) / _valid(_STREAM_ID, stream_id)
        with _explained(path):
            lock_fd = _locked(path, make=True)
            try:
                if (path / OPEN).exists():
                    raise SpoolError(f"{path} holds this stream already: a stream is written once, take a new id")
                write_whole(path / OPEN, opening.json_bytes())
                next_fd = stream_files.open_count(path)
            except (OSError, SpoolError):
                os.close(lock_fd)
                raise
        stream = cls(path, lock_fd, opening)
        stream._next_fd = next_fd
        return stream

    @classmethod
    def adopt(cls, path: Path, restore: Restore | None = None) -> Self:
        """A stream that no live process holds. What could not be made a batch is in ``problems``, and stays.

        Args:
            restore: reduces what was handed over and not reduced.

        Raises:
            SpoolBusy: a live process holds it.
            SpoolError: its ``open.json`` is missing or damaged, or the directory cannot be used.
        """
        with _explained(path):
            lock_fd = _locked(path, make=False)
            try:
                opening = StreamOpen.model_validate_json((path / OPEN).read_bytes())
            except (OSError, ValidationError) as error:
                os.close(lock_fd)
                raise SpoolError(f"{path / OPEN} cannot be read, so its batches cannot be sent: {error}") from error
        stream = cls(path, lock_fd, opening)
        try:
            with _explained(path):
                recovery = Recovery(path, restore)
                recovery.run()
        except BaseException:
            stream.let_go()
            raise
        stream.problems = recovery.problems
        return stream

    def count(self, next_seq: int) -> None:
        """Note the next batch's number: of what was sent from memory nothing else is left. A disk may refuse."""
        if self._next_fd is not None:
            with contextlib.suppress(OSError):
                stream_files.set_count(self._next_fd, next_seq)

    def append(self, seq: int, record: pa.Buffer, of_step: int = 0) -> None:
        """Keep rows of a batch that is not written yet, safe from the end of this process, not from that of the host.

        Args:
            of_step: the number of the handed-over step that they are; 0: of none.

        Raises:
            OSError: as ``write``.
        """
        tail.append(tail_file(self.path, seq), record, of_step)

    def write(self, seq: int, body: bytes) -> None:
        """Keep a batch; it is on the disk when this returns. Raises OSError (disk full, permission)."""
        write_whole(batch_file(self.path, seq), body)
        with contextlib.suppress(OSError):  # beside its batch a tail is not looked at
            tail_file(self.path, seq).unlink(missing_ok=True)

    def read(self, seq: int) -> bytes:
        """The body of a batch. Raises FileNotFoundError."""
        return batch_file(self.path, seq).read_bytes()

    def delete(self, seq: int) -> None:
        """Forget a batch that the server holds. Repeating it is harmless."""
        tail_file(self.path, seq).unlink(missing_ok=True)  # it is there still where the batch was sent from memory
        batch_file(self.path, seq).unlink(missing_ok=True)

    def reject(self, seq: int, reason: dict[str, Any]) -> None:
        """Keep aside, under ``rejected/``, a batch that the server will never take, with the reason."""
        aside = self.path / REJECTED
        aside.mkdir(exist_ok=True)
        write_whole(aside / f"{seq:012d}.reason.json", json.dumps(reason, indent=1).encode())
        os.replace(batch_file(self.path, seq), aside / batch_file(self.path, seq).name)
        sync_directory(self.path)

    def pending(self) -> list[tuple[int, int]]:
        """(seq, bytes) of every batch that waits, in the order of seq."""
        return _batches_in(self.path)

    def release(self) -> None:
        """Let go of the directory; where no batch is left in it, remove it. Repeating it is harmless."""
        if self._lock_fd is None:
            return
        with contextlib.suppress(OSError):  # whatever cannot be removed is harmless: push skips an empty stream
            self._remove_if_empty()
        for fd in (self._lock_fd, self._next_fd):
            if fd is not None:
                os.close(fd)
        self._lock_fd = self._next_fd = None

    def let_go(self) -> None:
        """Leave everything as it is. A forked child does so with its copy of the lock, which ends with the parent."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _remove_if_empty(self) -> None:
        if self.pending() or (self.path / REJECTED).exists() or any(numbered(self.path, TAIL).values()):
            return
        if left_in(self.path):
            return
        # The lock goes last: whoever opened it meanwhile sees that the file it locked is gone.
        for name in [*(n for n in os.listdir(self.path) if n != LOCK), LOCK]:
            (self.path / name).unlink()
        self.path.rmdir()
        self.path.parent.rmdir()  # fails, rightly, while the run has other streams


_HELD: weakref.WeakSet[SpoolStream] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for stream in list(_HELD):
        stream.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)


@dataclass(frozen=True, slots=True)
class PendingStream:
    """A stream found under a root.

    Args:
        path: its directory.
        run_id: the run it was made for, from the directory's name.
        num_batches: batches that wait; what is rows in a tail still, or a step that was never reduced, among them.
        num_bytes: their size.
        num_rejected: batches kept aside because the server refused them.
        is_live: a running process holds it and sends them itself.
    """

    path: Path
    run_id: str
    num_batches: int
    num_bytes: int
    num_rejected: int
    is_live: bool


def pending_streams(root: Path) -> Iterator[PendingStream]:
    """Every stream under ``root`` that has batches waiting or kept aside; none where ``root`` does not exist.

    Raises:
        SpoolError: ``root`` is not a directory or cannot be read.
    """
    for path in _streams(root):
        with _explained(path), contextlib.suppress(FileNotFoundError):  # another push sent and removed it meanwhile
            tails = {seq: size for seq, size in numbered(path, TAIL).items() if size}
            batches, rejected = tails | numbered(path, BATCH), _batches_in(path / REJECTED)
            sizes = [*batches.values(), *(left.size for left in left_in(path))]
            if sizes or rejected:
                yield PendingStream(path, path.parent.name, len(sizes), sum(sizes), len(rejected), is_live(path))


def sweep(root: Path) -> None:
    """Remove what is left of streams that ended with nothing to send; every other is left as it is.

    Raises:
        SpoolError: as ``pending_streams``.
    """
    waiting = {pending.path for pending in pending_streams(root)}
    for path in _streams(root):
        if path not in waiting and (path / OPEN).exists():  # without it, it is about to be made
            with contextlib.suppress(SpoolError):  # a live one, or not one of ours
                SpoolStream.adopt(path).release()


def _streams(root: Path) -> list[Path]:
    if not root.exists():
        return []
    found = []
    with _explained(root):
        for run in sorted(p for p in root.iterdir() if _is_valid(_RUN_ID, p.name) and p.is_dir()):
            with contextlib.suppress(FileNotFoundError):  # as above
                found += [p for p in sorted(run.iterdir()) if _is_valid(_STREAM_ID, p.name) and p.is_dir()]
    return found


def is_live(path: Path) -> bool:
    """Whether a running process holds the stream's directory."""
    try:
        os.close(_locked(path, make=False))
    except SpoolBusy:
        return True
    except FileNotFoundError:
        return False
    return False


def _locked(path: Path, make: bool) -> int:
    """A descriptor that holds the directory's lock."""
    for _ in range(10):  # another stream's end may remove the run's directory between our two calls
        if make:
            path.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            if make:
                continue
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise SpoolBusy(f"{path} is in use by a running process, which sends it itself") from None
        except OSError:
            os.close(fd)
            raise
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # its owner finished and removed it while we waited
    raise FileNotFoundError(f"{path} vanishes as fast as it is made")


def _batches_in(path: Path) -> list[tuple[int, int]]:
    return sorted(numbered(path, BATCH).items())


def _valid(adapter: TypeAdapter[str], name: str) -> str:
    if not _is_valid(adapter, name):
        raise SpoolError(f"{name!r} cannot name a spool directory: letters, digits, '.', '_' and '-', at most 128")
    return name


def _is_valid(adapter: TypeAdapter[str], name: str) -> bool:
    try:
        adapter.validate_python(name)
    except ValidationError:
        return False
    return True


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (NotADirectoryError, FileExistsError) as error:
        raise SpoolError(f"{error.filename} is not a directory: set ENTROSTAT_DIR to one, or move the file") from error
    except PermissionError as error:
        raise SpoolError(f"no permission for {error.filename}: set ENTROSTAT_DIR to a directory of yours") from error
    except OSError as error:
        raise SpoolError(f"the spool {path} cannot be used: {error}. Set ENTROSTAT_DIR to another directory") from error
