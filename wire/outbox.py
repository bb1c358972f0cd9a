"""Numbered batches that wait for the server: on disk, or in memory for as long as the disk refuses."""

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from entrostat.wire.codec import Tables, encode_plain
from entrostat.wire.counters import Tally
from entrostat.wire.notices import Notices
from entrostat.wire.spool import SpoolStream


@dataclass(slots=True)
class _Waiting:
    """One batch; ``body`` is set while it is in memory only."""

    size: int
    body: bytes | None


class Outbox:
    """A stream's batches in the order of their numbers. One thread adds, one takes away.

    Args:
        stream: where they are kept.
    """

    def __init__(self, stream: SpoolStream, tally: Tally, notices: Notices) -> None:
        self.stream, self._tally, self._notices = stream, tally, notices
        self.changed = threading.Condition()
        self._disk = threading.Lock()  # one writer at a time; never taken while `changed` is held
        self.next_seq = 0
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self.num_bytes, self.memory_bytes = 0, 0

    def add(self, body: bytes) -> None:
        """Give the batch its number, for good, and keep it. Never raises for a disk that refuses."""
        self.rescue()  # first, so that the disk never holds a later batch without an earlier one
        with self._disk:
            self.stream.count(self.next_seq + 1)
            on_disk = not self.memory_bytes and self._written(self.next_seq, body)
        with self.changed:
            self._waiting[self.next_seq] = _Waiting(len(body), None if on_disk else body)
            self.next_seq += 1
            self.num_bytes += len(body)
            self.memory_bytes += 0 if on_disk else len(body)
            self.changed.notify_all()
        self._tally.add("batches_written")
        self._tally.add("bytes", len(body))

    def note(self, tables: Tables, of_step: int = 0) -> bool:
        """Keep rows of the next batch on disk until it is written whole; False: a disk refuses, and is left alone."""
        with contextlib.suppress(OSError, pa.ArrowException):  # the batch itself will meet the same, and say so
            self.stream.append(self.next_seq, encode_plain(tables), of_step)
            return True
        return False

    def rescue(self) -> None:
        """Write to disk what had to stay in memory, oldest first, until the disk refuses again."""
        if not self.memory_bytes:
            return
        with self.changed:
            in_memory = [(seq, w.body) for seq, w in self._waiting.items() if w.body is not None]
        for seq, body in in_memory:
            with self._disk:
                if not self._written(seq, body):
                    return
                self._moved_to_disk(seq)

    def oldest(self) -> tuple[int, bytes] | None:
        """The next batch to send. Raises OSError when the disk cannot be read."""
        with self.changed:
            if not self._waiting:
                return None
            seq, waiting = next(iter(self._waiting.items()))
            body = waiting.body
        return seq, self.stream.read(seq) if body is None else body

    def oldest_seq(self) -> int | None:
        """Number of the next batch to send."""
        with self.changed:
            return next(iter(self._waiting), None)

    def remove(self, seq: int) -> None:
        """The server holds the batch."""
        self._forget(seq)
        self.stream.delete(seq)

    def set_aside(self, seq: int, reason: dict[str, Any]) -> None:
        """The server will never take the batch. Raises OSError when the disk cannot keep it aside."""
        self.rescue()
        self.stream.reject(seq, reason)
        self._tally.add("rejected")
        self._forget(seq)  # last: it lets a waiting flush return, which may read the above

    def lose(self, seq: int) -> None:
        """Somebody else removed the batch's file."""
        self._forget(seq)

    @property
    def num_waiting(self) -> int:
        """Batches that the server does not hold yet."""
        return len(self._waiting)

    def wait_for_batch(self, timeout_s: float, stop: threading.Event) -> None:
        """Until there is a batch to send, or ``stop`` is set and ``nudge`` called."""
        with self.changed:
            self.changed.wait_for(lambda: bool(self._waiting) or stop.is_set(), timeout_s)

    def nudge(self) -> None:
        """Wake who waits."""
        with self.changed:
            self.changed.notify_all()

    def wait_until_sent(self, before_seq: int, deadline: float, is_hopeless: Callable[[], bool]) -> bool:
        """Whether every batch below ``before_seq`` left before ``deadline`` (``time.monotonic``)."""
        with self.changed:
            while next(iter(self._waiting), before_seq) < before_seq:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or is_hopeless():
                    return False
                self.changed.wait(left_s)
        return True

    def _forget(self, seq: int) -> None:
        with self.changed:
            waiting = self._waiting.pop(seq)
            self.num_bytes -= waiting.size
            self.memory_bytes -= 0 if waiting.body is None else waiting.size
            self.changed.notify_all()

    def _moved_to_disk(self, seq: int) -> None:
        with self.changed:
            waiting = self._waiting.get(seq)
            if waiting is not None and waiting.body is not None:
                waiting.body = None
                self.memory_bytes -= waiting.size
        if waiting is None:  # the server took it in the meantime
            self.stream.delete(seq)

    def _written(self, seq: int, body: bytes) -> bool:
        try:
            self.stream.write(seq, body)
        except OSError as error:
            self._notices.say_once(
                "disk",
                f"entrostat cannot write to {self.stream.path} ({error}). Training goes on; batches wait in memory and "
                "are written as soon as the disk takes them: free some space, or set ENTROSTAT_DIR to another disk.",
            )
            return False
        return True
