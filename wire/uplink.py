"""The uplink thread: sends the outbox's batches in order, and brings back what the server wants to be on."""

import math
import threading
import time

from entrostat.wire.client import Client
from entrostat.wire.counters import Tally
from entrostat.wire.errors import Refused, ServerDown
from entrostat.wire.messages import DesiredState, StreamOpen, Thresholds
from entrostat.wire.notices import Notices, log
from entrostat.wire.outbox import Outbox
from entrostat.wire.retry import Backoff, Verdict, verdict_on

POLL_EVERY_S = 10.0
"""How often an idle sender asks for the desired state."""


class Uplink:
    """One stream's way to the server.

    Args:
        opening: sent before the first batch, and again to a server that does not know the stream.
    """

    def __init__(self, client: Client, opening: StreamOpen, outbox: Outbox, tally: Tally, notices: Notices) -> None:
        self._client, self._opening, self._outbox = client, opening, outbox
        self._tally, self._notices = tally, notices
        self._backoff = Backoff()
        self._is_open = False
        self._last_answer = -math.inf
        self._stop = threading.Event()
        self._hurry = threading.Event()
        # Each is replaced whole, in one assignment, so readers on other threads need no lock.
        self.desired = DesiredState()
        self.thresholds: Thresholds | None = None
        self.run_id = opening.run_id
        self.is_halted = False
        self.num_failures = 0

    @property
    def silent_s(self) -> float:
        """Seconds since the server's last answer; infinite before the first."""
        return time.monotonic() - self._last_answer

    def run(self) -> None:
        """The thread. Ends after ``stop``, or when the server is older than we are."""
        while not self._stop.is_set() and not self.is_halted:
            try:
                self._turn()
            except (Refused, ServerDown, OSError) as error:
                self._after_failure(error)
            except Exception as error:  # noqa: BLE001 - logged; the thread must live on
                log.warning("entrostat: sending failed; it will be tried again", exc_info=True)
                self._pause(self._backoff.after(ServerDown(self._client.url, str(error))), can_hurry=True)
        self._client.close()

    def hurry(self) -> None:
        """Try now rather than at the end of a wait of our own."""
        self._hurry.set()
        self._outbox.nudge()

    def stop(self) -> None:
        """End after the delivery in progress."""
        self._stop.set()
        self.hurry()

    def _turn(self) -> None:
        if not self._is_open:
            self._open()
        try:
            oldest = self._outbox.oldest()
        except FileNotFoundError:
            self._lose()
            return
        if oldest is None:
            self._idle()
            return
        self._send(*oldest)

    def _send(self, seq: int, body: bytes) -> None:
        try:
            ack = self._client.post_batch(self._outbox.stream.stream_id, seq, body)
        except Refused as error:
            if verdict_on(error) is not Verdict.SET_ASIDE:
                raise
            self._set_aside(seq, error)
            return
        self._tally.add("batches_acked")
        self._tally.add("duplicates", ack.duplicate)
        self._heard(ack.desired, ack.thresholds)
        self._backoff.reset()
        self._outbox.remove(seq)  # last: it lets a waiting flush return, which may read all of the above

    def _open(self) -> None:
        opened = self._client.open_stream(self._outbox.stream.stream_id, self._opening)
        self._is_open, self.run_id = True, opened.run_id
        self._heard(opened.desired, opened.thresholds)

    def _heard(self, desired: DesiredState, thresholds: Thresholds | None = None) -> None:
        self.desired, self._last_answer = desired, time.monotonic()
        self.thresholds = thresholds or self.thresholds

    def _idle(self) -> None:
        left_s = self._last_answer + POLL_EVERY_S - time.monotonic()
        if left_s > 0:
            self._hurry.clear()
            self._outbox.wait_for_batch(left_s, self._stop)
        else:
            self._heard(self._client.desired(self.run_id))
            self._backoff.reset()

    def _after_failure(self, error: Refused | ServerDown | OSError) -> None:
        verdict = Verdict.RETRY if isinstance(error, OSError) else verdict_on(error)
        self._is_open = self._is_open and verdict is not Verdict.REOPEN
        self._tally.add("retries")
        self._say(verdict, error)
        self.num_failures += 1
        self.is_halted = verdict is Verdict.STOP
        self._outbox.nudge()  # last: who waits in flush or close may now go on, and may read all of the above
        asked_to_wait = isinstance(error, Refused) and error.retry_after_s is not None
        self._pause(self._backoff.after(error), can_hurry=not asked_to_wait)

    def _set_aside(self, seq: int, error: Refused) -> None:
        reason = {"status": error.status, "error": error.code, "message": error.message}
        self._outbox.set_aside(seq, reason)
        message = f"The server refused a batch, which is kept in rejected/: {error.code}: {error.message}"
        # One event, whatever the batch: an event about each refused batch could itself be refused, for ever.
        self._notices.warn(message, {"seq": seq, **reason}, key="The server refused a batch.")
        self._notices.say_once("rejected", f"entrostat: batch {seq} of {self._outbox.stream.path}: {message}")

    def _lose(self) -> None:
        seq = self._outbox.oldest_seq()
        if seq is not None:
            self._outbox.lose(seq)
            self._notices.warn("A batch vanished from the spool before it was sent.", {"seq": seq})

    def _say(self, verdict: Verdict, error: Refused | ServerDown | OSError) -> None:
        where = self._outbox.stream.path
        if verdict is Verdict.DENIED:
            advice = "Set ENTROSTAT_TOKEN to a token with the scope `ingest` and start again, or send later with push."
        elif verdict is Verdict.STOP:
            advice = "Update entrostat on the server, then send with `entrostat push`."
        else:
            advice = "It is tried again until it works."
        self._notices.say_once(
            verdict.name, f"entrostat: {error}. Training goes on; its data waits in {where}. {advice}"
        )

    def _pause(self, seconds: float, can_hurry: bool) -> None:
        (self._hurry if can_hurry else self._stop).wait(seconds)
        self._hurry.clear()
