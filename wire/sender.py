"""From the training thread to the server: a bounded queue, a journal on disk, an uplink. It never waits, never raises.

::

    put() --> queue --> journal thread: reduce, check, coalesce, number, fsync --> spool --> uplink thread --> server
                                                                                              desired state <--'
"""

import atexit
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from entrostat.wire.bounded_queue import ByteBoundedQueue, Item, Reduce
from entrostat.wire.client import Client
from entrostat.wire.counters import Counters, Tally
from entrostat.wire.handover import Handover, Record
from entrostat.wire.journal import Journal
from entrostat.wire.messages import DesiredState, StreamOpen, Thresholds
from entrostat.wire.notices import Notices
from entrostat.wire.outbox import Outbox
from entrostat.wire.spool import SpoolStream
from entrostat.wire.uplink import Uplink

_FAILURES_TO_LEAVE = 2
"""So many failed deliveries while closing, and the rest is left to push: no run waits at its end for a dead server."""
_LONGEST_DRAIN_S = 60.0
"""How long ``close`` waits for the journal: reduce may be waiting for a device that no longer answers."""


class Sender:
    """One stream of one process.

    Args:
        opening: who sends; its ``run_id`` names the directory under ``root``.
        url: the server; None: everything stays in the spool until ``entrostat push``.
        token: for a server that asks for one.
        root: the spool's directory.
        linger_s: how long the first rows of a batch wait for more.
        max_queue_bytes: what may wait in memory, once before and once after it was reduced.
        max_spool_bytes: what may wait on disk before token rows are left out of new batches.
        stream_id: 32 hexadecimal digits; random where None. An id is never used twice.

    Raises:
        SpoolError: the directory cannot be used, with what to change. Nothing after construction raises.
        ValueError: the address or the token cannot be one.
    """

    def __init__(
        self,
        opening: StreamOpen,
        *,
        url: str | None,
        token: str | None,
        root: Path,
        linger_s: float = 0.5,
        max_queue_bytes: int = 256 * 2**20,
        max_spool_bytes: int = 4 * 2**30,
        stream_id: str | None = None,
    ) -> None:
        client = Client(url, token) if url else None
        self._root, self._opening, self._pid = root, opening, os.getpid()
        self._tally, self._notices = Tally(), Notices()
        self._queue = ByteBoundedQueue(max_queue_bytes)
        self._stream = SpoolStream.create(root, opening, stream_id or secrets.token_hex(16))
        self._handover = Handover(self._stream.path)
        self._outbox = Outbox(self._stream, self._tally, self._notices)
        self._journal = Journal(
            self._queue, self._outbox, self._tally, self._notices, linger_s, max_queue_bytes, max_spool_bytes
        )
        self._uplink = Uplink(client, opening, self._outbox, self._tally, self._notices) if client else None
        self._dropped_in_child = 0
        self._is_closed = False
        self._closing = threading.Lock()
        self._threads = [threading.Thread(target=self._journal.run, name="entrostat-journal", daemon=True)]
        if self._uplink:
            self._threads.append(threading.Thread(target=self._uplink.run, name="entrostat-uplink", daemon=True))
        else:
            self._notices.say_once("no_url", f"entrostat: no server is set: steps wait in {root}. {self._how_to_push}")
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    @property
    def handover(self) -> Handover:
        """Where the training thread keeps what a step's ``reduce`` will read, if it is to outlive the process."""
        return self._handover

    def put(
        self, reduce: Reduce, nbytes: int, what: str = "step", token_rows: int = 0, record: Record | None = None
    ) -> None:
        """Hand over work for the journal thread. Never waits, never raises; without room it is dropped and counted.

        Args:
            reduce: makes the tables (name -> rows) of ``wire/tables.py``; called once, on the journal thread.
            nbytes: memory it holds until then.
            what: a word for the counts and warnings.
            token_rows: token rows it will make, where known, so that a drop can count them.
            record: what of it ``handover`` has sealed.
        """
        if os.getpid() != self._pid:  # a forked child has none of our threads, and perhaps a lock held for ever
            self._dropped_in_child += 1
            return
        if self._handover.trouble is not None:
            self._notices.say_once(
                "handover",
                f"entrostat: {self._handover.trouble}, in {self._stream.path}. From now on steps wait in memory until "
                "their rows are made: a killed trainer may lose the last of them.",
            )
        item = Item(reduce, nbytes, what, token_rows, record)
        if self._queue.put(item):
            return
        item.free()
        self._tally.add("dropped_items")
        self._tally.add("dropped_token_rows", token_rows)
        if self._is_closed:  # no batch is left to say so in
            return
        self._notices.lost("queue_full", items=1, steps=int(what == "step"), token_rows=token_rows, bytes=nbytes)
        self._queue.wake()

    @property
    def desired(self) -> DesiredState:
        """What the server last said should be on; the empty document until it has answered."""
        return self._uplink.desired if self._uplink else DesiredState()

    @property
    def thresholds(self) -> Thresholds | None:
        """The scores that the last whole step's top tokens reached, where somebody asked for them."""
        return self._uplink.thresholds if self._uplink else None

    @property
    def silent_s(self) -> float:
        """Seconds since the server's last answer; infinite before the first."""
        return self._uplink.silent_s if self._uplink else math.inf

    @property
    def run_id(self) -> str:
        """The run the stream belongs to: as asked for, until the server has answered with its own choice."""
        return self._uplink.run_id if self._uplink else self._opening.run_id

    @property
    def stream_id(self) -> str:
        """The stream's id, in URLs and in the spool."""
        return self._stream.stream_id

    @property
    def counters(self) -> Counters:
        """The counts now."""
        if os.getpid() != self._pid:
            return Counters(dropped_items=self._dropped_in_child)
        return self._tally.snapshot(self._queue.num_bytes, self._outbox.num_bytes)

    def flush(self, timeout_s: float) -> bool:
        """Whether everything put before now reached the server within ``timeout_s``."""
        if os.getpid() != self._pid:
            return False
        deadline = time.monotonic() + timeout_s
        if not self._journal.drain(deadline):
            return False
        return self._sent(deadline, lambda: self._uplink is not None and self._uplink.is_halted)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write everything to disk, try to send it until ``timeout_s``, say where the rest is. Safe to repeat."""
        if os.getpid() != self._pid:
            return
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        atexit.unregister(self.close)
        deadline = time.monotonic() + timeout_s
        self._journal.close()
        self._threads[0].join(max(timeout_s, _LONGEST_DRAIN_S))
        failed_before = self._uplink.num_failures if self._uplink else 0
        self._sent(deadline, lambda: self._is_server_away(failed_before))
        if self._uplink:
            self._uplink.stop()
            self._threads[1].join(1.0)
        self._outbox.rescue()
        self._handover.close()
        self._stream.release()
        self._say_what_is_left()

    def _sent(self, deadline: float, is_hopeless: Callable[[], bool]) -> bool:
        if self._uplink is None:
            return self._outbox.oldest_seq() is None
        self._uplink.hurry()
        return self._outbox.wait_until_sent(self._outbox.next_seq, deadline, is_hopeless)

    def _is_server_away(self, failed_before: int) -> bool:
        uplink = self._uplink
        return uplink is not None and (uplink.is_halted or uplink.num_failures - failed_before >= _FAILURES_TO_LEAVE)

    def _say_what_is_left(self) -> None:
        if self._threads[0].is_alive():
            self._notices.say_once(
                "stuck", f"entrostat: after {_LONGEST_DRAIN_S:.0f} s, {len(self._queue)} steps were not written; lost."
            )
        if self._outbox.memory_bytes:
            self._notices.say_once(
                "lost",
                f"entrostat: {self._outbox.memory_bytes} bytes of batches could be neither sent nor written; lost.",
            )
        if self._uplink and self._outbox.num_waiting:
            num = self._outbox.num_waiting
            self._notices.say_once("left", f"entrostat: {num} batches wait in {self._stream.path}. {self._how_to_push}")

    @property
    def _how_to_push(self) -> str:
        return f"Send them later: ENTROSTAT_DIR={self._root} entrostat push"
