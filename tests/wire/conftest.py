"""A real HTTP server on loopback that does as it is told, and senders with real files."""

import json
import threading
from collections import deque
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest

from entrostat.wire import retry
from entrostat.wire.codec import decode
from entrostat.wire.messages import StreamOpen
from entrostat.wire.sender import Sender
from entrostat.wire.tables import STEP_METRIC


class FakeServer:
    """Stores what it accepts. ``script`` holds what happens to the next batches, one word each; empty: all go well.

    ok · lost_request (not stored, connection dropped) · lost_ack (stored, connection dropped) · hang · an HTTP status
    """

    def __init__(self):
        self.script = deque()
        self.streams, self.store, self.requests = {}, {}, []
        self.desired = {"version": 0, "interventions": []}
        self.headers = {}
        self.open_status = 200
        self.run_id = None
        self.let_go = threading.Event()
        self._http = None
        self.port = 0
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        handler = type("Handler", (_Handler,), {"fake": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        self.let_go.set()
        if self._http:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def steps(self, stream_id=None):
        """The steps in the store, in the order of the batches' numbers."""
        found = []
        for (stream, _), body in sorted(self.store.items()):
            if stream_id in (None, stream):
                found += decode(body).get("step_metric", STEP_METRIC.empty_table())["step"].to_pylist()
        return found

    def events(self):
        rows = [row for _, body in sorted(self.store.items()) for row in _events(body)]
        return [{**row, "detail": json.loads(row["detail"] or "{}")} for row in rows]

    def seqs(self):
        return sorted(seq for _, seq in self.store)


def _events(body):
    tables = decode(body)
    return tables["event"].to_pylist() if "event" in tables else []


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, document, headers=None):
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.fake.requests.append((self.command, self.path, dict(self.headers), body))
        return body

    def refuse(self, status):
        codes = {404: "unknown_stream", 422: "malformed_batch", 413: "too_large", 426: "unknown_version", 503: "busy"}
        document = {"error": codes.get(status, "error"), "message": f"no: {status}"}
        self.answer(status, document, self.fake.headers)

    def do_PUT(self):
        body = self.body()
        if self.fake.open_status != 200:
            self.refuse(self.fake.open_status)
            return
        opening = StreamOpen.model_validate_json(body)
        self.fake.streams[self.path.split("/")[3]] = opening
        run_id = self.fake.run_id or opening.run_id
        self.answer(200, {"run_id": run_id, "protocol": 1, "desired": self.fake.desired})

    def do_POST(self):
        body = self.body()
        _, _, _, stream, _, seq = self.path.split("/")
        what = self.fake.script.popleft() if self.fake.script else "ok"
        if what == "lost_request":
            self.close_connection = True
            return
        if what == "hang":
            self.fake.let_go.wait(60)
            self.close_connection = True
            return
        if what.isdigit():
            self.refuse(int(what))
            return
        if stream not in self.fake.streams:
            self.refuse(404)
            return
        key = (stream, int(seq))
        is_duplicate = key in self.fake.store
        assert not is_duplicate or self.fake.store[key] == body, "a batch came back with another body"
        self.fake.store[key] = body
        if what == "lost_ack":
            self.close_connection = True
            return
        self.answer(200, {"acked": int(seq), "duplicate": is_duplicate, "desired": self.fake.desired})

    def do_GET(self):
        self.body()
        if self.path.endswith("/desired"):
            self.answer(200, self.fake.desired)
        elif self.path.startswith("/v1/runs"):
            self.answer(200, {"runs": [{"run": "r"}]})
        elif self.path == "/html":
            self.answer(200, b"<html>")
        else:
            self.answer(404, {"error": "not_found", "message": "no such page", "table": "t", "column": "c"})


@pytest.fixture
def server():
    fake = FakeServer()
    yield fake
    fake.stop()


@pytest.fixture
def new_server():
    """A second server, where a test needs one."""
    made = []
    yield lambda: made.append(FakeServer()) or made[-1]
    for fake in made:
        fake.stop()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(retry, "LONGEST_WAIT_S", 0.2)


@pytest.fixture
def opening():
    return StreamOpen(run_id="run", session_id="a" * 32, started=datetime.now(UTC))


@pytest.fixture
def make_sender(tmp_path, opening):
    made = []

    def make(url, **settings):
        settings = {"token": None, "root": tmp_path / "spool", "linger_s": 0.02, **settings}
        made.append(Sender(settings.pop("opening", opening), url=url, **settings))
        return made[-1]

    yield make
    for sender in made:
        sender.close(0.0)


def metric_rows(*steps):
    rows = [{"step": step, "name": "x", "merge": "last", "state": [float(step)]} for step in steps]
    return pa.Table.from_pylist(rows, schema=STEP_METRIC)


@pytest.fixture
def metric():
    """Rows of ``step_metric``, one a step."""
    return metric_rows


@pytest.fixture
def step():
    """A reduce function that makes one row of ``step_metric``."""
    return lambda number: lambda: {"step_metric": metric_rows(number)}
