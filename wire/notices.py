"""What a sender has to tell: to the person at the terminal once, and to the run as events, each with its numbers."""

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pydantic_core import to_json

from entrostat.wire.redaction import redacted, redacted_values
from entrostat.wire.tables import EVENT, MAX_TEXT_CHARS

log = logging.getLogger("entrostat")

_MOST_DISTINCT = 100
"""Distinct warnings that become events of their own; a message with a number in it must not fill the run."""
_LONGEST_MESSAGE = 1000
_LONGEST_TEXT = 10_000
"""Of any event: an error may carry a whole configuration."""


def event(kind: str, message: str, detail: Mapping[str, Any] | None = None, step: int | None = None) -> pa.Table:
    """One row of the ``event`` table, with the time of now."""
    row = {
        "step": step,
        "time": datetime.now(UTC).replace(tzinfo=None),
        "kind": kind,
        "message": sendable(message),
        "detail": detail_text(detail),
    }
    return pa.Table.from_pylist([row], schema=EVENT)


def sendable(message: str) -> str:
    """``message`` as it may go to a server: not endless, in characters that exist, without passwords."""
    return redacted(message[:_LONGEST_TEXT]).encode(errors="replace").decode()


def detail_text(detail: Mapping[str, Any] | None) -> str | None:
    """An event's values as JSON; NaN and infinities are null. Never raises: what cannot be written is said so."""
    if detail is None:
        return None
    try:
        text = to_json(redacted_values(detail), inf_nan_mode="null", fallback=str).decode()
    except (ValueError, TypeError, RecursionError) as error:
        text = to_json({"left_out": sendable(f"the values are no JSON ({type(error).__name__}: {error})")}).decode()
    too_long = f"the values have {len(text)} characters, at most {MAX_TEXT_CHARS} are kept"
    return text if len(text) <= MAX_TEXT_CHARS else to_json({"left_out": too_long}).decode()


class Notices:
    """Warnings and losses that wait to be sent with the next batch. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may log or drop while the same thread is in here
        self._said: set[str] = set()
        self._rows: list[pa.Table] = []
        self._times: Counter[str] = Counter()
        self._lost: dict[str, Counter[str]] = {}

    def say_once(self, key: str, message: str) -> None:
        """Tell the person at the terminal, the first time only."""
        with self._lock:
            if key in self._said:
                return
            self._said.add(key)
        log.warning("%s", message)

    def warn(self, message: str, detail: dict[str, Any], key: str | None = None) -> None:
        """A ``warning`` event the first time this message (or ``key``) comes; afterwards it is counted."""
        with self._lock:
            message = message[:_LONGEST_MESSAGE]
            key = key or message
            if key not in self._times and len(self._times) >= _MOST_DISTINCT:
                key = "further warnings, each another message"
            self._times[key] += 1
            if self._times[key] == 1:
                self._rows.append(event("warning", message, detail))

    def lost(self, reason: str, **counts: int) -> None:
        """Count something dropped: it goes out as one ``dropped`` event with the next batch."""
        with self._lock:
            self._lost.setdefault(reason, Counter()).update(counts)

    @property
    def is_pending(self) -> bool:
        """Whether an event waits for a batch."""
        return bool(self._rows or self._lost)

    def take(self) -> list[pa.Table]:
        """The events that wait; they are the caller's now."""
        with self._lock:
            rows, lost = self._rows, self._lost
            self._rows, self._lost = [], {}
        return rows + [_dropped(reason, counts) for reason, counts in lost.items()]

    def take_repeats(self) -> list[pa.Table]:
        """At the end: one event for each warning that came more than once."""
        with self._lock:
            repeated = {key: n for key, n in self._times.items() if n > 1}
            self._times.clear()
        return [event("warning", f"{n} times in all: {key}", {"times": n}) for key, n in repeated.items()]


_REASONS = {
    "queue_full": "the queue was full: the steps came faster than they could be reduced and written",
    "spool_full": "the spool was over its limit: token rows were left out, step values were kept",
}


def _dropped(reason: str, counts: Counter[str]) -> pa.Table:
    amounts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items() if n)
    return event("dropped", f"Dropped {amounts}: {_REASONS[reason]}.", {"reason": reason, **counts})
