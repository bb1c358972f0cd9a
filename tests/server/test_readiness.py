"""Could a batch be taken now? Why not, in one word; and what the log and the metrics say of it."""

import json
import logging
import threading

import duckdb
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.patience import until

from entrostat.server import readiness as readiness_module
from entrostat.server.metrics import Metrics
from entrostat.server.readiness import REASONS, Readiness, Watch
from entrostat.storage.errors import Busy, DatabaseBroken
from entrostat.storage.store import Store
from entrostat.wire.codec import decode_json
from entrostat.wire.logs import JsonFormat
from entrostat.wire.messages import StreamOpen

STREAM = f"{1:032x}"


class Watched:
    """A store, whether it is ready, and what is logged and measured of it."""

    def __init__(self, store):
        self.store, self.readiness, self.lines = store, Readiness(store), []
        self.watch = Watch(store, self.readiness, slow_commit_s=60.0)
        self.metrics = Metrics(store, self.readiness.hindrance, 2, "1")
        opening = StreamOpen(run_id="r", session_id=STREAM, started="2026-01-01T00:00:00Z")
        store.open_stream(STREAM, opening)

    def add(self, seq=0):
        body = json.dumps({"step_metric": [{"step": seq, "name": "entropy_mean", "value": 0.5}]}).encode()
        return self.store.add_batch(STREAM, seq, decode_json(body), len(body))

    @property
    def reason(self):
        found = self.readiness.hindrance()
        return found and found.reason

    def look(self):
        """The events of one look."""
        before = len(self.lines)
        self.watch.look()
        return [(line["event"], line.get("code")) for line in self.lines[before:]]

    def sample(self, name, **labels):
        samples = [
            s for f in text_string_to_metric_families(self.metrics.text().decode()) for s in f.samples
            if s.name == name and s.labels == labels
        ]  # fmt: skip
        return samples[0].value if samples else None


@pytest.fixture
def watched(tmp_path):
    with Store(f"duckdb://{tmp_path / 'w.duckdb'}", max_queue_bytes=1, min_free_bytes=1) as store:
        made = Watched(store)
        handler = logging.Handler()
        handler.emit = lambda record: made.lines.append(json.loads(JsonFormat().format(record)))
        logging.getLogger("entrostat").addHandler(handler)
        yield made
        logging.getLogger("entrostat").removeHandler(handler)


def fail(error):
    def action(cursor):
        raise error

    return action


def test_a_quiet_server_is_ready(watched):
    assert watched.reason is None
    assert watched.look() == []
    assert watched.sample("entrostat_ready") == 1
    assert [watched.sample("entrostat_hindrance", reason=reason) for reason in REASONS] == [0] * len(REASONS)


@pytest.fixture
def blocked(watched):
    """The writer waits for the event that this is."""
    go_on = threading.Event()
    waiting = threading.Thread(target=watched.store.write, args=(lambda cursor: go_on.wait(),))
    waiting.start()
    yield go_on
    go_on.set()
    waiting.join()


def test_a_full_queue_begins_and_ends(watched, blocked):
    first = watched.add(0)
    with pytest.raises(Busy):
        watched.add(1)

    assert watched.reason == "queue_full"
    assert watched.look() == [("not_ready", "queue_full")]
    assert (watched.sample("entrostat_ready"), watched.sample("entrostat_hindrance", reason="queue_full")) == (0, 1)
    assert watched.sample("entrostat_batches_waiting") == 1
    assert watched.sample("entrostat_oldest_batch_waiting_seconds") > 0
    blocked.set()
    first.result(60)
    assert watched.reason is None
    assert watched.look() == [("hindrance_ended", "queue_full")]
    assert watched.sample("entrostat_oldest_batch_waiting_seconds") == 0


def test_a_disk_below_its_floor(watched, monkeypatch):
    free = watched.store.state().free_bytes
    monkeypatch.setattr(watched.store._disk, "min_free_bytes", free * 2)

    assert watched.reason == "disk_full"
    assert watched.look() == [("not_ready", "disk_full"), ("disk_nearly_full", None)]
    monkeypatch.setattr(watched.store._disk, "min_free_bytes", 1)
    assert watched.look() == [("hindrance_ended", "disk_full")]


def test_after_a_write_that_failed_it_is_tried_until_it_works(watched, monkeypatch):
    monkeypatch.setattr(readiness_module, "WRITE_EVERY_S", 0.0)
    with pytest.raises(duckdb.IOException):
        watched.store.write(fail(duckdb.IOException("IO Error: the disk is gone")))

    assert watched.reason == "write_failed"
    assert watched.look() == [("not_ready", "write_failed")]
    assert watched.reason is None
    assert watched.look() == [("hindrance_ended", "write_failed")]


def test_a_broken_database_is_said_and_does_not_take_the_metrics_with_it(watched):
    with pytest.raises(duckdb.FatalException):
        watched.store.write(fail(duckdb.FatalException("FATAL Error: no")))

    with pytest.raises(DatabaseBroken, match="stopped working"):
        watched.add()
    assert watched.reason == "database_broken"
    assert watched.look() == [("not_ready", "database_broken")]
    assert watched.sample("entrostat_database_broken") == 1


def test_runs_that_cannot_be_read_do_not_take_the_metrics_with_them(watched, monkeypatch):
    assert watched.sample("entrostat_runs_readable") == 1
    monkeypatch.setattr(watched.store, "watched_runs", fail(duckdb.FatalException("FATAL Error: no")))

    assert watched.sample("entrostat_runs_readable") == 0
    assert watched.sample("entrostat_ready") == 1


def test_who_was_asked_to_stop_is_not_ready(watched):
    watched.readiness.begin_stopping()

    assert watched.reason == "stopping"


def test_a_slow_commit_is_logged(watched):
    slow = Watch(watched.store, watched.readiness, slow_commit_s=-1.0)
    watched.store.on_commit(slow.committed)
    watched.add().result(60)

    assert [(line["event"], line["batches"]) for line in watched.lines] == [("commit_slow", 1)]


def test_a_server_whose_disk_is_below_the_floor_refuses_and_says_so(own_server):
    server = own_server(ENTROSTAT_SERVER_MIN_FREE_MB=str(10**9), ENTROSTAT_SERVER_LOG_FORMAT="json").start()
    answer = server.post(server.open(), 0, {"step_metric": [{"step": 1, "name": "n", "value": 1}]})
    ready = httpx.get(f"{server.url}/v1/ready")

    assert (answer.status_code, answer.json()["error"]) == (503, "disk_full")
    assert "min_free_mb" in answer.json()["message"]
    assert int(answer.headers["Retry-After"]) >= 1
    assert (ready.status_code, ready.json()["reason"]) == (503, "disk_full")
    assert server.http.get("/healthz").status_code == 200
    assert server.ask("select count(*) from batch") == [[0]]
    page = server.http.get("/metrics").text
    assert 'entrostat_refused_requests_total{code="disk_full"} 1.0' in page
    assert 'entrostat_hindrance{reason="disk_full"} 1.0' in page
    until(lambda: server.events("not_ready"), "the log does not say it")
    refused = server.events("batch_refused")[0]
    assert (refused["code"], refused["run"], refused["seq"]) == ("disk_full", "r", "0")
