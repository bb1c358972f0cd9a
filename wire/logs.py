"""Log records of the service: one line an event on stderr, as text or JSON, throttled, without secrets.

``event(log, level, "batch_refused", code="busy")`` is a record with fields. Records of libraries (uvicorn, waitress)
get the same shape, with ``event`` = ``log`` and their text as ``message``. Everything goes through the standard
``logging`` module, so a program that embeds the server may format the records in its own way.
"""

import json
import logging
import re
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
BURST = 10
"""So many records of a kind are written at once ..."""
REFILL_S = 10.0
"""... and then one in so many seconds, which says how many were left out: 2 MB a day for each kind."""
MAX_KINDS = 500
NEVER_THROTTLED = frozenset({"started", "stopped", "control", "database_broken"})
"""What happens seldom and must all be there; who may ``control`` a run is trusted with the disk."""
_FIELDS = "fields"
_LONGEST_VALUE = 1000
_SECRETS = (
    (re.compile(r"\bes_[A-Za-z0-9_-]{8,}"), "es_[hidden]"),  # our tokens
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+"), r"\1 [hidden]"),
    (re.compile(r"(?<=://)[^/@\s]+@"), "[hidden]@"),  # user and password of an address
)


def event(log: logging.Logger, level: int, name: str, /, **fields: Any) -> None:
    """Log the event ``name`` with ``fields``; those that are None are left out. Never a token, never a body."""
    log.log(level, name, extra={_FIELDS: {key: value for key, value in fields.items() if value is not None}})


def configure(form: str, level: str) -> None:
    """Send every record of this process, of libraries too, to stderr in one shape.

    Args:
        form: one of ``FORMATS``.
        level: one of ``LEVELS``; libraries say nothing below ``warning``.

    Raises:
        ValueError: names the setting.
    """
    for name, value, allowed in (("log_format", form, FORMATS), ("log_level", level, LEVELS)):
        if value not in allowed:
            raise ValueError(f"{name}={value!r}: must be one of {', '.join(allowed)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormat() if form == "json" else TextFormat())
    handler.addFilter(Throttle())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("entrostat").setLevel(level.upper())
    logging.captureWarnings(True)
    threading.excepthook = _thread_died


def _thread_died(died: threading.ExceptHookArgs) -> None:
    if died.exc_value is None:  # the interpreter ends
        return
    name = died.thread.name if died.thread else None
    logging.getLogger("entrostat").error("thread_died", exc_info=died.exc_value, extra={_FIELDS: {"thread": name}})


class TextFormat(logging.Formatter):
    """``2026-11-21T12:00:00.000Z WARNING batch_refused code=busy run=mine``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever is in the values."""
        document = fields_of(record)
        head = f"{document.pop('time')} {document.pop('level').upper()} {document.pop('event')}"
        return " ".join([head, *(f"{key}={_plain(value)}" for key, value in document.items())])


class JsonFormat(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever is in the values."""
        return json.dumps(fields_of(record), default=str)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """``time``, ``level``, ``event``, ``logger``, then the event's own fields; an exception as ``error``, ``trace``."""
    fields: Mapping[str, Any] | None = getattr(record, _FIELDS, None)
    document: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "event": "log" if fields is None else record.msg,
        "logger": record.name,
    }
    document |= {"message": record.getMessage()} if fields is None else fields
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        document |= {"error": f"{type(error).__name__}: {error}", "trace": "".join(traceback.format_exception(error))}
    return {key: _clean(value, None if key == "trace" else _LONGEST_VALUE) for key, value in document.items()}


def without_secrets(text: str) -> str:
    """``text`` without tokens, and without the user and password of an address."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def _clean(value: Any, longest: int | None) -> Any:
    if isinstance(value, bool | int | float):
        return value
    text = without_secrets(str(value))
    return text if longest is None or len(text) <= longest else text[:longest] + "..."


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    is_simple = bool(text) and text.isprintable() and not set(text) & set(" \"'=")
    return text if is_simple else json.dumps(text)  # ASCII: nothing in it moves a terminal


@dataclass(slots=True)
class _Kind:
    allowed: float
    at: float
    num_left_out: int = 0


class Throttle(logging.Filter):
    """Lets ``BURST`` records of a kind through, then one each ``REFILL_S`` with the number ``left_out`` before it.

    A kind is a logger, an event (a library's: its message before the arguments are put in) and a ``code``.

    Args:
        clock: seconds, ever growing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._lock = clock, threading.Lock()
        self._kinds: OrderedDict[tuple[str, str, str], _Kind] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        fields: dict[str, Any] | None = getattr(record, _FIELDS, None)
        if fields is not None and record.msg in NEVER_THROTTLED:
            return True
        with self._lock:
            kind = self._kind((record.name, str(record.msg), str((fields or {}).get("code", ""))))
            if kind.allowed < 1:
                kind.num_left_out += 1
                return False
            kind.allowed -= 1
            num_left_out, kind.num_left_out = kind.num_left_out, 0
        if num_left_out:
            if fields is None:
                record.msg = f"{record.getMessage()} ({num_left_out} like it were left out)"
                record.args = None
            else:
                fields["left_out"] = num_left_out
        return True

    def _kind(self, key: tuple[str, str, str]) -> _Kind:
        now = self._clock()
        kind = self._kinds.pop(key, None) or _Kind(BURST, now)
        kind.allowed, kind.at = min(BURST, kind.allowed + (now - kind.at) / REFILL_S), now
        self._kinds[key] = kind
        while len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        return kind
