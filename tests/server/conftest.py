"""The real server in a process of its own, and a person with curl."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support.patience import PATIENCE_S, until
from support.service import free_port

STARTED = "2026-01-01T00:00:00Z"


@dataclass
class Server:
    """The server's process; may be killed and started again on the same data and port."""

    data: Path
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    program: tuple[str, ...] = ("-m", "entrostat.server")
    before: Callable[[], None] | None = None  # runs in the process before the server does
    process: subprocess.Popen | None = None

    def __post_init__(self):
        folder = next(path for path in self.data.parents if path.is_dir())
        self.log_path = folder / f"server-{id(self)}.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)

    @property
    def log(self):
        """What the server's processes have written on stderr so far."""
        return self.log_path.read_text()

    def events(self, name):
        """The events of this name, from a log in JSON (ENTROSTAT_SERVER_LOG_FORMAT=json)."""
        return [line for line in map(json.loads, self.log.splitlines()) if line["event"] == name]

    def start(self):
        command = [sys.executable, *self.program, "--port", str(self.port), "--data", str(self.data)]
        with open(self.log_path, "a") as log:  # a pipe that nobody reads would fill up, and the server wait
            self.process = subprocess.Popen(
                [*command, *self.arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | dict(self.environment),
                preexec_fn=self.before,
            )
        self.first_line = self.process.stdout.readline()
        if not self.first_line:
            self.process.wait()
            raise AssertionError(f"the server did not start: {self.log}")
        until(self.answers, "the server does not answer")
        return self

    def answers(self):
        try:
            return self.http.get("/healthz")
        except httpx.HTTPError:
            assert self.process.poll() is None, f"the server did not start: {self.log}"
            return None

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=PATIENCE_S)

    def open(self, run="r", stream=1, **more):
        """Opens a stream as curl would; returns its id."""
        stream_id = f"{stream:032x}"
        body = {"run_id": run, "session_id": f"{more.pop('session', 1):032x}", "started": STARTED, **more}
        answer = self.http.put(f"/v1/streams/{stream_id}", json=body)
        assert answer.status_code == 200, answer.text
        return stream_id

    def post(self, stream_id, seq, tables):
        return self.http.post(f"/v1/streams/{stream_id}/batches/{seq}", json=tables)

    def ask(self, sql):
        answer = self.http.post("/v1/sql", json={"sql": sql})
        assert answer.status_code == 200, answer.text
        return answer.json()["rows"]


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("server") / "data", environment=(("ENTROSTAT_SERVER_MAX_BODY_MB", "1"),))
    yield made.start()
    made.stop()


@pytest.fixture(scope="session")
def narrow_server(tmp_path_factory):
    """One with little time, memory and room for questions."""
    limits = {"MAX_ROWS": 1000, "MAX_RESULT_MB": 1, "QUERY_TIMEOUT_S": 1, "MEMORY_LIMIT_MB": 256, "MAX_TEMP_MB": 64}
    environment = tuple((f"ENTROSTAT_SERVER_{name}", str(value)) for name, value in limits.items())
    made = Server(tmp_path_factory.mktemp("narrow") / "data", environment=environment)
    yield made.start()
    made.stop()


@pytest.fixture
def server(shared_server):
    """The shared server without runs."""
    for run in shared_server.http.get("/v1/runs").json()["runs"]:
        shared_server.http.delete(f"/v1/runs/{run['run']}")
    return shared_server


@pytest.fixture
def own_server(tmp_path):
    """``own_server(*arguments, program=("-m", "entrostat.server"), **environment)``: a server for one test."""
    made = []

    def make(*arguments, data=tmp_path / "data", program=Server.program, before=None, **environment):
        one = Server(data, arguments, tuple(environment.items()), program, before)
        made.append(one)
        return one

    yield make
    for one in made:
        if one.process is not None:
            one.stop()
