"""Stopping in order: say that we are not ready, finish what was taken; the same signal again ends the process at once.

Another signal does not: Ctrl+C reaches every process of a terminal, and a parent that it reaches sends SIGTERM then.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from entrostat.wire.logs import event

_log = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppingServer(uvicorn.Server):
    """uvicorn, which on the first signal goes on for ``drain_s``, not ready, and returns from ``run`` when all is done.

    What was acknowledged is on disk at any moment, so that the same signal again may end everything.

    Args:
        on_stop: called in the signal handler of the first signal.
        drain_s: so long new connections are still taken, for a balancer that has to see that we are not ready.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None], drain_s: float) -> None:
        super().__init__(config)
        self._on_stop, self._drain_s = on_stop, drain_s
        self._stop_at: float | None = None
        self.signal: str | None = None
        """Name of the signal that asked us to stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's handler; ours while the store is closed, too. What it does not note is not raised again."""
        name = signal.Signals(sig).name
        if self.signal is not None:
            if name == self.signal:
                event(_log, logging.WARNING, "stopped", code="forced", signal=name)
                os._exit(128 + sig)
            return
        self.signal = name
        self._stop_at = time.monotonic() + self._drain_s
        self._on_stop()

    async def on_tick(self, counter: int) -> bool:
        """Each 0.1 s: whether to stop."""
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            self.should_exit = True
        return await super().on_tick(counter)
