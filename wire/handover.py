"""What the training thread hands over, on disk before its call returns: a step outlives its process from then on.

A file holds one step: a head, the data as the caller gave it, and a document that says what the data is. The head is
written last, so that a step without one was never handed over, and is wiped when the step's rows are in a tail
(``wire/tail.py``) or a batch. Files are used again: copying to pages that exist costs a tenth of copying to new ones
(``benchmarks/caller_thread.py``). Nothing is synced: a killed process loses nothing, a host that loses power may. So a
head names the boot of the host it was written in, and counts in that boot alone. On a file system of another host,
which may keep a writer waiting for as long as the network is away, steps are not kept: training never waits.
"""

import contextlib
import os
import struct
import threading
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SUFFIX = ".step"
_MAGIC = b"entrost1"
_HEAD = struct.Struct("<8s16sQqQQQI")
"""Magic, boot, the step's number in the stream, the batch it became part of (-1: none), bytes of data, where the
document begins, its size, its CRC-32: of a write that is cut short the kernel keeps the beginning."""
_BATCH, _BATCH_AT = struct.Struct("<q"), 32
"""The batch's number, and where it is in a head."""
DATA_AT = 16_384
"""Where a file's data begins: behind room for most documents, so that head and document are one write."""
_NO_BATCH = -1
_MOST_FREE = 4
"""Files kept for use again."""

Bytes = memoryview | np.ndarray[Any, Any]
"""What can be kept: contiguous."""


class Handover:
    """One stream's steps on their way from the training thread to the journal thread.

    ``keep`` and ``seal`` are the training thread's; ``Span.read`` and ``Record.free`` may be any other's.

    Args:
        directory: of the stream.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._pid = directory, os.getpid()
        self._boot = boot() if is_local(directory) else None
        self._free: deque[StepFile] = deque()
        self._all: list[StepFile] = []
        self._current: StepFile | None = None
        self._num_made = self._num_sealed = 0
        self._lock = threading.Lock()
        self.trouble: OSError | None = None

    @property
    def is_on(self) -> bool:
        """Whether steps can be kept here: not after the disk refused one, not in a forked child; see the module."""
        return self._boot is not None and self.trouble is None and self._pid == os.getpid()

    def keep(self, pieces: Sequence[Bytes]) -> "Span | None":
        """Copy ``pieces`` behind what was kept of the current step. None: it was not possible; keep them yourself.

        Args:
            pieces: contiguous; the caller may change them as soon as this returns.
        """
        if not self.is_on:
            return None
        try:
            if self._current is None:
                self._current = self._take()
            return self._current.append(pieces)
        except OSError as error:
            self.trouble = error
            return None

    def seal(self, document: bytes | None) -> "Record | None":
        """End the current step. From now on it outlives the process. None: nothing of it was kept.

        Args:
            document: says what was kept; None: something of the step is elsewhere, and the file is only read.
        """
        if self._current is None or self._pid != os.getpid():  # a forked child's file is its parent's
            return None
        file, self._current = self._current, None
        if document is None or not self.is_on:
            return Record(self, file, 0)
        try:
            self._num_sealed += 1
            file.seal(document, self._boot or b"", self._num_sealed)
        except OSError as error:
            self.trouble = error
            return Record(self, file, 0)
        return Record(self, file, self._num_sealed)

    def give_back(self, file: "StepFile") -> None:
        """The step is in good hands elsewhere."""
        try:
            file.wipe()
            is_wiped = True
        except OSError:
            is_wiped = False
        with self._lock:
            if is_wiped and len(self._free) < _MOST_FREE and file in self._all:
                self._free.append(file)
            else:
                self._drop(file)

    def close(self) -> None:
        """Remove the files, but for steps that were sealed and never given back."""
        if self._pid != os.getpid():
            return
        with self._lock:
            for file in [*self._free, *([self._current] if self._current else [])]:
                self._drop(file)
            self._free.clear()
            self._all.clear()
            self._current = None

    def _take(self) -> "StepFile":
        with self._lock:
            if self._free:
                file = self._free.popleft()
                file.begin()
                return file
            made = StepFile.create(self._directory / f"{self._num_made:09d}{SUFFIX}")
            self._num_made += 1
            self._all.append(made)
            return made

    def _drop(self, file: "StepFile") -> None:
        with contextlib.suppress(ValueError):  # given back after ``close``
            self._all.remove(file)
        file.remove()


class StepFile:
    """One file; see the module."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd, self._end = path, fd, DATA_AT

    @classmethod
    def create(cls, path: Path) -> "StepFile":
        """A new file. Raises OSError, where there is one of that name too."""
        return cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))

    def begin(self) -> None:
        """Nothing is in it."""
        self._end = DATA_AT

    def append(self, pieces: Sequence[Bytes]) -> "Span":
        """Raises OSError."""
        start = self._end
        _write_all(self._fd, pieces, start)
        self._end = start + sum(piece.nbytes for piece in pieces)
        return Span(self._fd, start, self._end - start)

    def seal(self, document: bytes, boot_id: bytes, number: int) -> None:
        """Raises OSError."""
        size, at = self._end - DATA_AT, _HEAD.size
        if at + len(document) > DATA_AT:
            at = self.append([memoryview(document)]).start
        crc = zlib.crc32(document)
        head = _HEAD.pack(_MAGIC, boot_id, number, _NO_BATCH, size, at, len(document), crc)
        _write_all(self._fd, [memoryview(head + document if at == _HEAD.size else head)], 0)

    def becomes(self, seq: int) -> None:
        """Raises OSError."""
        _write_all(self._fd, [memoryview(_BATCH.pack(seq))], _BATCH_AT)

    def wipe(self) -> None:
        """Raises OSError."""
        _write_all(self._fd, [memoryview(bytes(_HEAD.size))], 0)

    def remove(self) -> None:
        """Of the disk and of the process; what is still to be read of it is lost."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that were kept. Good until their step is given back."""

    fd: int
    start: int
    size: int

    def read(self) -> bytearray:
        """A copy. Raises OSError."""
        return _read_all(self.fd, self.start, self.size)


@dataclass(frozen=True, slots=True)
class Record:
    """A step that ended. ``number`` counts the stream's sealed steps from 1; 0: this one would not outlive us."""

    _handover: Handover
    _file: StepFile
    number: int

    def becomes(self, seq: int) -> None:
        """Note which batch will have its rows: where that is kept, the step is not made again. Raises OSError."""
        if self.number:
            self._file.becomes(seq)

    def free(self) -> None:
        """Its rows are kept elsewhere, or lost for good."""
        self._handover.give_back(self._file)


# --- what a dead process left -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Left:
    """A step that was handed over and not reduced.

    Args:
        path: its file.
        number: in the stream.
        seq: the batch that somebody was about to make with it; None: no one came so far.
        data_size: bytes of the data.
        document_at: where the document begins in the file.
    """

    path: Path
    number: int
    seq: int | None
    data_size: int
    document_at: int
    document_size: int

    @classmethod
    def at(cls, path: Path) -> "Left | None":
        """What the file says; None where no step was sealed in it since this host was booted. Raises OSError."""
        with open(path, "rb", buffering=0) as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return None
            magic, boot_id, number, seq, data_size, at, size, crc = _HEAD.unpack(head)
            if magic != _MAGIC or boot_id != boot():
                return None
            document = os.pread(file.fileno(), size, at)
        if zlib.crc32(document) != crc:
            return None
        return cls(path, number, None if seq == _NO_BATCH else seq, data_size, at, size)

    @property
    def size(self) -> int:
        """Bytes of the step."""
        return self.data_size + self.document_size

    def read(self) -> tuple[bytes, memoryview]:
        """The document and the data. Raises OSError."""
        whole = memoryview(self.path.read_bytes())
        document = whole[self.document_at : self.document_at + self.document_size]
        return bytes(document), whole[DATA_AT : DATA_AT + self.data_size]

    def becomes(self, seq: int | None) -> None:
        """Note which batch it will be part of, so that whoever is stopped in between makes it once. Raises OSError."""
        with open(self.path, "r+b", buffering=0) as file:
            _write_all(file.fileno(), [memoryview(_BATCH.pack(_NO_BATCH if seq is None else seq))], _BATCH_AT)


def left_in(directory: Path) -> list[Left]:
    """The steps in a stream's directory that were sealed since this host was booted, in their order."""
    found = []
    for path in directory.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            found.append(Left.at(path))
    return sorted((left for left in found if left is not None), key=lambda left: left.number)


def boot() -> bytes | None:
    """16 bytes that are others after the host was started anew; None where the system does not say."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return None


_OF_OTHERS = {
    "9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2",
    "smb3", "smbfs", "wekafs",
}  # fmt: skip


def is_local(directory: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether the directory is on a file system of this host's own; False where the system does not say."""
    best, kind = "", ""
    real = os.path.realpath(directory)
    try:
        for line in mounts.read_text().splitlines():
            mounted, described = line.split(" - ", maxsplit=1)
            at = mounted.split(" ")[4].replace("\\040", " ")
            if len(at) >= len(best) and (real == at or real.startswith(at.rstrip("/") + "/")):
                best, kind = at, described.split(" ")[0]
    except (OSError, ValueError, IndexError):
        return False
    return bool(kind) and kind not in _OF_OTHERS and not kind.startswith("fuse")


def _write_all(fd: int, pieces: Sequence[Bytes], at: int) -> None:
    total = sum(piece.nbytes for piece in pieces)
    if not total:
        return
    written = os.pwritev(fd, pieces, at)  # type: ignore[arg-type]  # Buffer has a name from Python 3.12 on
    if written < total:  # a disk that fills up, or a signal in between
        rest = memoryview(b"".join(pieces))[written:]  # type: ignore[arg-type]  # the same
        while rest:
            written += (num := os.pwrite(fd, rest, at + written))
            rest = rest[num:]


def _read_all(fd: int, at: int, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        num = os.preadv(fd, [view], at)
        if not num:
            raise OSError("a step's file is shorter than what was written to it")
        view, at = view[num:], at + num
    return data
