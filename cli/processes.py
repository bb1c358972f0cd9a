"""Child processes that live as long as a command: started, waited for, stopped with it."""

import os
import signal
import subprocess
import sys
import time
from types import TracebackType

import httpx

from entrostat.wire.errors import EntrostatError

_STOP_S = 20.0
_QUIET = {"ENTROSTAT_SERVER_LOG_LEVEL": "warning", "ENTROSTAT_DASHBOARD_LOG_LEVEL": "warning"}


class Processes:
    """Named child processes; leaving the context stops them all, the last started first, and so does SIGTERM.

    Enter it on the main thread.
    """

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Processes":
        # By default it would end this process on the spot, and leave the server behind with the database.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)

    def start(self, name: str, command: list[str], quiet: bool = False) -> None:
        """Start ``command``; ``quiet`` drops what it prints on stdout and logs that all is well (warnings stay)."""
        environment = (_QUIET if quiet else {}) | os.environ
        self._running[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL if quiet else None, env=environment)

    def wait_for(self, url: str, name: str, timeout_s: float = 60.0) -> None:
        """Wait until ``url`` answers.

        Raises:
            EntrostatError: the process ended, or did not answer in time.
        """
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if (status := self._running[name].poll()) is not None:
                raise EntrostatError(f"the {name} ended with status {status} before it answered: see its message above")
            try:
                httpx.get(url, timeout=2.0)
            except httpx.HTTPError:
                time.sleep(0.1)
            else:
                return
        raise EntrostatError(f"the {name} did not answer at {url} within {timeout_s:.0f} s")

    def stop(self, name: str) -> None:
        """Ask a process to end, then make it."""
        process = self._running.pop(name)
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_until_stopped(self) -> None:
        """Until Ctrl+C, or until one of them ends by itself.

        Raises:
            EntrostatError: one ended by itself.
        """
        try:
            while True:
                for name, process in self._running.items():
                    if (status := process.poll()) is not None:
                        raise EntrostatError(f"the {name} ended with status {status}")
                time.sleep(0.5)
        except KeyboardInterrupt:
            print()
