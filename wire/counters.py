"""What a sender has done, counted."""

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """A snapshot of a sender's counts since it started.

    Args:
        batches_written: batches numbered and kept, on disk or, while the disk refuses, in memory.
        batches_acked: batches that the server holds, ``duplicates`` of them it held before the answer came.
        bytes: size of the batches written, compressed.
        dropped_items: items that found the queue full, the sender closed, or this process a forked child.
        dropped_token_rows: token rows left out because the spool is over its limit, or dropped with their item.
        failed_items: items whose ``reduce`` raised or made rows that are not as agreed.
        rejected: batches that the server will never take, kept aside under ``rejected/``.
        retries: deliveries that failed and were or will be tried again.
        queue_bytes: bytes of the items that wait now.
        spool_bytes: bytes of the batches that wait for the server now.
    """

    batches_written: int = 0
    batches_acked: int = 0
    duplicates: int = 0
    bytes: int = 0
    dropped_items: int = 0
    dropped_token_rows: int = 0
    failed_items: int = 0
    rejected: int = 0
    retries: int = 0
    queue_bytes: int = 0
    spool_bytes: int = 0


class Tally:
    """Counts that several threads add to."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may count while the same thread is in here
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Add to the field ``name`` of ``Counters``."""
        with self._lock:
            self._counts[name] += count

    def snapshot(self, queue_bytes: int, spool_bytes: int) -> Counters:
        """The counts now."""
        with self._lock:
            return Counters(**self._counts, queue_bytes=queue_bytes, spool_bytes=spool_bytes)
