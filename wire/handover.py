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
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".step"
_MAGIC = b"entrost1"
_HEAD = struct.Struct("<8s16sQqQQ")
"""Magic, boot, the step's number in the stream, the batch it became part of (-1: none), where the document begins, its
size."""
DATA_AT = 64
"""Where a file's data begins."""
_NO_BATCH = -1
_MOST_FREE = 8
"""Files kept for use again."""


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
        self._num_sealed = 0
        self._lock = threading.Lock()
        self.trouble: OSError | None = None

    @property
    def is_on(self) -> bool:
        """Whether steps can be kept here: not after the disk refused one, not in a forked child; see the module."""
        return self._boot is not None and self.trouble is None and self._pid == os.getpid()

    def keep(self, pieces: Sequence[memoryview]) -> "Span | None":
        """Copy ``pieces`` behind what was kept of the current step. None: it was not possible; keep them yourself.

        Args:
            pieces: of bytes; the caller may change them as soon as this returns.
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
        """End the current step. From now on it outlives the process.

        Args:
            document: says what was kept; None: something of the step is elsewhere, and the file is only read.
        """
        if document is not None and self.keep([]) is None:
            return None
        file, self._current = self._current, None
        if file is None:
            return None
        if document is None:
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
        with contextlib.suppress(OSError):
            file.wipe()
        with self._lock:
            if len(self._free) < _MOST_FREE and file in self._all:
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
            made = StepFile.create(self._directory)
            self._all.append(made)
            return made

    def _drop(self, file: "StepFile") -> None:
        with contextlib.suppress(OSError, ValueError):
            self._all.remove(file)
        file.remove()


class StepFile:
    """One file; see the module."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd, self._end = path, fd, DATA_AT

    @classmethod
    def create(cls, directory: Path) -> "StepFile":
        """A file that no other step is in. Raises OSError."""
        for number in range(1_000_000):
            path = directory / f"{number:06d}{SUFFIX}"
            with contextlib.suppress(FileExistsError):
                return cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        raise OSError(f"{directory} is full of steps that were never reduced")

    def begin(self) -> None:
        """Nothing is in it."""
        self._end = DATA_AT

    def append(self, pieces: Sequence[memoryview]) -> "Span":
        """Raises OSError."""
        start = self._end
        _write_all(self._fd, pieces, start)
        self._end = start + sum(piece.nbytes for piece in pieces)
        return Span(self._fd, start, self._end - start)

    def seal(self, document: bytes, boot_id: bytes, number: int) -> None:
        """Raises OSError."""
        where = self.append([memoryview(document)])
        self._write_head(_HEAD.pack(_MAGIC, boot_id, number, _NO_BATCH, where.start, where.size))

    def wipe(self) -> None:
        """Raises OSError."""
        self._write_head(bytes(_HEAD.size))

    def _write_head(self, head: bytes) -> None:
        _write_all(self._fd, [memoryview(head)], 0)

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

    def read(self, offset: int = 0, size: int | None = None) -> bytearray:
        """A copy of ``size`` bytes from ``offset``. Raises OSError."""
        size = self.size - offset if size is None else size
        return _read_all(self.fd, self.start + offset, size)


@dataclass(frozen=True, slots=True)
class Record:
    """A step that ended. ``number`` counts the stream's sealed steps from 1; 0: this one would not outlive us."""

    _handover: Handover
    _file: StepFile
    number: int

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
        seq: the batch that an earlier ``push`` was about to make of it; None: no one came so far.
        size: bytes.
    """

    path: Path
    number: int
    seq: int | None
    document_at: int
    document_size: int

    @property
    def size(self) -> int:
        """Bytes of the step."""
        return self.document_at + self.document_size - DATA_AT

    def read(self) -> tuple[bytes, memoryview]:
        """The document and the data. Raises OSError."""
        whole = memoryview(self.path.read_bytes())
        end = self.document_at + self.document_size
        return bytes(whole[self.document_at : end]), whole[DATA_AT : self.document_at]

    def becomes(self, seq: int) -> None:
        """Note which batch it will be part of, so that whoever is stopped in between makes it once. Raises OSError."""
        fd = os.open(self.path, os.O_WRONLY)
        try:
            head = _HEAD.pack(_MAGIC, boot() or b"", self.number, seq, self.document_at, self.document_size)
            _write_all(fd, [memoryview(head)], 0)
        finally:
            os.close(fd)


def left_in(directory: Path) -> list[Left]:
    """The steps in a stream's directory that were sealed since this host was booted, in their order."""
    found, now = [], boot()
    for path in directory.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                continue
            magic, boot_id, number, seq, at, size = _HEAD.unpack(head)
            if magic == _MAGIC and boot_id == now and path.stat().st_size >= at + size:
                found.append(Left(path, number, None if seq == _NO_BATCH else seq, at, size))
    return sorted(found, key=lambda left: left.number)


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


def _write_all(fd: int, pieces: Sequence[memoryview], at: int) -> None:
    total = sum(piece.nbytes for piece in pieces)
    if not total:
        return
    written = os.pwritev(fd, pieces, at)
    if written < total:  # a disk that fills up, or a signal in between
        rest = memoryview(b"".join(pieces))[written:]
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
