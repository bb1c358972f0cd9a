"""Who is signed in: a person's token stays in this process; their browser holds a signed number that expires."""

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from itsdangerous import BadSignature, TimestampSigner

MAX_SESSIONS = 10_000
MAX_WRONG = 5
"""Wrong tokens from one address within ``WRONG_S``; then it waits."""
WRONG_S = 60.0


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person who is signed in.

    Args:
        token: theirs; nobody but the server is ever told it.
        name: under which the token was made.
        scopes: what it might do when they signed in; the server asks each time.
    """

    token: str
    name: str
    scopes: frozenset[str]

    @property
    def may_control(self) -> bool:
        """Whether they may change runs."""
        return bool(self.scopes & {"control", "admin"})

    def __repr__(self) -> str:
        return f"Visitor({self.name!r})"  # never the token: this may be logged


class Sessions:
    """Sessions of one dashboard. A restart ends them all: the key and the tokens are in memory only.

    Args:
        lasts_s: so long after signing in a person signs in again.
    """

    def __init__(self, lasts_s: float) -> None:
        self.lasts_s = lasts_s
        self._signer = TimestampSigner(secrets.token_bytes(32), salt="entrostat session")
        self._held: OrderedDict[str, Visitor] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, visitor: Visitor) -> str:
        """What the browser keeps of a new session."""
        number = secrets.token_urlsafe(32)
        with self._lock:
            self._held[number] = visitor
            while len(self._held) > MAX_SESSIONS:
                self._held.popitem(last=False)
        return self._signer.sign(number).decode()

    def visitor(self, kept: str | None) -> Visitor | None:
        """Who a browser's cookie stands for; None where it is missing, forged, over or ended."""
        number = self._number(kept)
        return None if number is None else self._held.get(number)

    def end(self, kept: str | None) -> None:
        """Sign out."""
        number = self._number(kept)
        with self._lock:
            self._held.pop(number or "", None)

    def _number(self, kept: str | None) -> str | None:
        try:
            return self._signer.unsign(kept or "", max_age=int(self.lasts_s)).decode()
        except (BadSignature, UnicodeError):
            return None


class Attempts:
    """Wrong tokens by address, so that nobody tries thousands.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, address: str) -> float:
        """How long an address has to wait; 0 where it may try."""
        with self._lock:
            times = self._wrong.get(address)
            if times is None or len(times) < MAX_WRONG:
                return 0.0
            return max(0.0, times[0] + WRONG_S - self._clock())

    def failed(self, address: str) -> None:
        """A wrong token came from there."""
        with self._lock:
            self._wrong.setdefault(address, deque(maxlen=MAX_WRONG)).append(self._clock())
            self._wrong.move_to_end(address)
            while len(self._wrong) > MAX_SESSIONS:
                self._wrong.popitem(last=False)
