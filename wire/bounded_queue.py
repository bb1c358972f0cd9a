"""The queue between the training thread and the journal: bounded in bytes, never waits, never raises."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from entrostat.wire.handover import Record

Reduce = Callable[[], dict[str, pa.Table]]


@dataclass(frozen=True, slots=True)
class Item:
    """Work for the journal thread.

    Args:
        reduce: makes the tables; runs on the journal thread.
        nbytes: memory it holds until then.
        what: ``step`` or another word for the counts.
        token_rows: token rows it will make, where that is known.
        record: what is on disk of it already.
    """

    reduce: Reduce
    nbytes: int
    what: str = "step"
    token_rows: int = 0
    record: Record | None = None

    def free(self) -> None:
        """Its rows are kept elsewhere, or lost for good."""
        if self.record is not None:
            self.record.free()


class ByteBoundedQueue:
    """Items in order; an item's bytes count until it was reduced."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: deque[Item] = deque()
        # Re-entrant: a signal handler on the training thread may put while that thread is in here.
        self._changed = threading.Condition(threading.RLock())
        self._woken = False
        self._is_closed = False
        self.num_bytes = 0
        self.num_put = 0

    def put(self, item: Item) -> bool:
        """Whether there was room, and the queue open."""
        with self._changed:
            if self._is_closed or self.num_bytes + item.nbytes > self._max_bytes:
                return False
            self._items.append(item)
            self.num_bytes += item.nbytes
            self.num_put += 1
            self._changed.notify_all()
        return True

    def get(self, timeout_s: float | None) -> Item | None:
        """The next item; None after ``timeout_s``, or at once when ``wake`` was called since the last ``get``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._items and not self._woken:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                self._changed.wait(left_s)
            self._woken = False
            return self._items.popleft() if self._items else None

    def wake(self) -> None:
        """Let a waiting ``get`` return."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing more. What is in it can still be got."""
        with self._changed:
            self._is_closed = True
        self.wake()

    @property
    def is_finished(self) -> bool:
        """Closed, and everything was got."""
        with self._changed:
            return self._is_closed and not self._items

    def free(self, item: Item) -> None:
        """The item's memory was given back."""
        with self._changed:
            self.num_bytes -= item.nbytes

    def __len__(self) -> int:
        return len(self._items)
