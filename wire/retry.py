"""What to do when a delivery fails, and how long to wait: the same for the sender and for ``entrostat push``."""

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum

from entrostat.wire.errors import Refused, ServerDown

LONGEST_WAIT_S = 30.0


class Verdict(Enum):
    """What a failed delivery calls for."""

    RETRY = "the server is away or busy: wait and send the same again"
    REOPEN = "the server does not know the stream (any more): open it, then send the same again"
    SET_ASIDE = "this batch can never be accepted: keep it aside and go on"
    DENIED = "the token is missing or lacks the scope: say so, try now and then"
    STOP = "the server is older than we are: send nothing more"


def verdict_on(error: Refused | ServerDown) -> Verdict:
    """The verdict on a failed delivery."""
    if isinstance(error, ServerDown):
        return Verdict.RETRY
    by_status = {
        401: Verdict.DENIED,
        403: Verdict.DENIED,
        404: Verdict.REOPEN,
        413: Verdict.SET_ASIDE,
        422: Verdict.SET_ASIDE,
        426: Verdict.STOP,
    }
    return by_status.get(error.status, Verdict.RETRY)


def retry_after_s(header: str | None) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, as a number or a date; None where it says nothing."""
    if header is None:
        return None
    try:
        return max(0.0, float(header)) if header.strip()[:1].isdigit() else _seconds_until(header)
    except (ValueError, TypeError):
        return None


def _seconds_until(date: str) -> float:
    moment = parsedate_to_datetime(date)
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


class Backoff:
    """Waits that double from ``first_s`` to ``LONGEST_WAIT_S``, with jitter so that ranks don't march in step."""

    def __init__(self, first_s: float = 0.5) -> None:
        self._first_s = first_s
        self._failures = 0

    def reset(self) -> None:
        """Something worked."""
        self._failures = 0

    def after(self, error: Refused | ServerDown | OSError) -> float:
        """Seconds to wait after this failure; what the server asks for, where it asks (30 s at most)."""
        longest = min(self._first_s * 2.0 ** min(self._failures, 16), LONGEST_WAIT_S)
        self._failures += 1
        if isinstance(error, Refused) and error.retry_after_s is not None:
            return min(error.retry_after_s, LONGEST_WAIT_S)
        if isinstance(error, Refused) and verdict_on(error) is Verdict.DENIED:
            return LONGEST_WAIT_S
        return longest * random.uniform(0.5, 1.0)
