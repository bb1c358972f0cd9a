"""The real server and dashboard, each in a process of its own, and runs made up for them."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from datetime import UTC, datetime

import httpx
import numpy as np
import pyarrow as pa
from support.patience import PATIENCE_S, until

from entrostat.probe.rows import event_rows, metric_rows
from entrostat.wire import codec
from entrostat.wire.client import Client
from entrostat.wire.mergeable import Part
from entrostat.wire.messages import Permissions, StreamOpen
from entrostat.wire.tables import PROFILE

CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip


def free_port():
    """A port nobody listens on, below those that the system gives to outgoing connections while we look away."""
    for port in random.sample(range(15_000, 32_000), 100):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


class Process:
    """``python -m <module>`` on a port; may be stopped and started again on the same one."""

    def __init__(self, module, *arguments):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [sys.executable, "-m", module, "--port", str(self.port), *map(str, arguments)]
        self.process = None

    def start(self, path="/"):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        until(lambda: self.answers(path), f"{self.command} did not answer", every_s=0.1)
        return self

    def answers(self, path):
        try:
            return httpx.get(f"{self.url}{path}", timeout=10)
        except httpx.HTTPError:
            return None

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)


def chromium():
    """Path of the browser; where there is none the test fails, and says what to do."""
    for name in (os.environ.get("ENTROSTAT_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        if name and (path := shutil.which(name)):
            return path
    raise AssertionError(
        "no Chromium: install it (Debian: apt-get install chromium) or set ENTROSTAT_CHROMIUM to its path; "
        "make test installs it where it may"
    )


class FakeRun:
    """A run that reports made-up values over the real wire."""

    def __init__(self, url, run, tags=None, permissions=None, token=None):
        self.client, self.stream, self.seq = Client(url, token), uuid.uuid4().hex, 0
        opening = StreamOpen(
            run_id=run, session_id=uuid.uuid4().hex, started=datetime.now(UTC), trainer="trl.GRPOTrainer",
            tags=tags or {}, config={"lr": 1e-6}, versions={"torch": "2"}, settings={"baseline_steps": 2},
            permissions=permissions or Permissions(),
        )  # fmt: skip
        self.client.open_stream(self.stream, opening)

    def report(self, steps, value=lambda step: np.exp(-step / 50)):
        for step in steps:
            parts = {
                "entropy_mean": Part("mean", (1.0, float(value(step)))),
                "pass_at_1": Part("mean", (1.0, 1 - float(value(step)))),
                "reward_mean": Part("mean", (1.0, 0.5)),
                "num_tokens": Part("sum", (100.0,)),
                "wall_time_s": Part("max", (1.7e9 + step,)),
                "trainer/loss": Part("last", (0.1,)),
            }
            self._post({"step_metric": metric_rows(step, parts)})

    def report_one(self, step, name, value):
        self._post({"step_metric": metric_rows(step, {name: Part("mean", (1.0, value))})})

    def profile(self, step, curves):
        rows = [
            {"step": step, "name": name, "bin": i, "count": 10, "total": 10 * mean}
            for name, means in curves.items()
            for i, mean in enumerate(means)
        ]
        self._post({"profile": pa.Table.from_pylist(rows, schema=PROFILE)})

    def event(self, kind, message, step, detail=None):
        self._post({"event": event_rows(kind, message, step, detail)})

    def _post(self, tables):
        self.client.post_batch(self.stream, self.seq, codec.encode(tables))
        self.seq += 1
