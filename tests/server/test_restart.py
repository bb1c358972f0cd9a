"""What nothing inside the process can end or mend, the server ends by replacing itself; nobody loses anything."""

import json
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest
from support.breakable_server import BREAKING
from support.patience import PATIENCE_S, until

from entrostat.server.restart import Past

# The engine searches 16 MB for 8 MB that are not there, in one call: for hours.
RUNAWAY = (
    "with recursive s as (select 'aaaaaaaa' as t union all select t || t from s where length(t) < 16000000) "
    "select contains(max(t), left(max(t), 8000000) || 'b') from s"
)
BREAKABLE = (str(Path(__file__).parents[1] / "support" / "breakable_server.py"),)


def health(server):
    answer = server.answers()
    return answer.json() if answer else None


def restarts(server):
    found = health(server)
    return found["restarts"] if found else None


def ask(server, sql):
    return server.http.post("/v1/sql", json={"sql": sql})


class Sender(threading.Thread):
    """A producer on one connection: sends the same batch again until it is acknowledged, then the next."""

    def __init__(self, server, stream):
        super().__init__(daemon=True)
        self.server, self.stream, self.num_acked, self.is_over = server, stream, 0, False
        self.start()

    def run(self):
        with httpx.Client(base_url=self.server.url, timeout=PATIENCE_S, trust_env=False) as client:
            while not self.is_over:
                rows = [{"step": self.num_acked, "name": "n", "merge": "sum", "state": [1]}] * 5
                try:
                    path = f"/v1/streams/{self.stream}/batches/{self.num_acked}"
                    answer = client.post(path, json={"step_metric": rows})
                except httpx.HTTPError:
                    continue
                self.num_acked += answer.status_code == 200

    def stop(self):
        self.is_over = True
        self.join(PATIENCE_S)


def test_a_query_that_cannot_be_stopped_is_answered_and_the_server_replaces_itself(own_server, tmp_path):
    server = own_server(ENTROSTAT_SERVER_QUERY_TIMEOUT_S="1", ENTROSTAT_SERVER_QUERY_RESTART_S="3").start()
    pid = server.process.pid
    sender = Sender(server, server.open())
    until(lambda: sender.num_acked > 3)

    acked_before = sender.num_acked
    answer = ask(server, RUNAWAY)
    acked_meanwhile = sender.num_acked - acked_before
    assert (answer.status_code, answer.json()["error"]) == (408, "query_timeout")
    assert acked_meanwhile > 0  # the engine was still at it

    until(lambda: restarts(server) == 1)
    acked_then = sender.num_acked
    until(lambda: sender.num_acked > acked_then + 3)
    sender.stop()
    assert server.process.poll() is None
    assert server.process.pid == pid
    assert "cannot be stopped" in health(server)["last_restart"]
    assert "entrostat_restarts_total 1.0" in server.http.get("/metrics").text
    held = [seq for (seq,) in server.ask("select seq from batch order by seq")]
    assert held[: sender.num_acked] == list(range(sender.num_acked))
    assert server.ask("select min(value), max(value) from step_metric") == [[5.0, 5.0]]  # whole batches, once each

    server.stop()
    assert server.process.returncode == 0
    assert "query_not_stopped" in server.log
    assert "with recursive s as" in server.log
    assert not (tmp_path / "data" / "entrostat.duckdb.wal").exists()


def test_asked_to_stop_while_it_replaces_itself_the_server_stops_and_closes_the_database(own_server, tmp_path):
    server = own_server(ENTROSTAT_SERVER_QUERY_TIMEOUT_S="1", ENTROSTAT_SERVER_QUERY_RESTART_S="1").start()
    stream = server.open()
    server.post(stream, 0, {"step_metric": [{"step": 1, "name": "n", "value": 1}]})
    assert ask(server, RUNAWAY).status_code == 408
    until(lambda: "replaces_itself" in server.log)
    server.stop()

    assert server.process.returncode == 0
    assert not (tmp_path / "data" / "entrostat.duckdb.wal").exists()
    assert server.start().ask("select seq from batch") == [[0]]


def test_asked_to_stop_while_a_query_cannot_be_stopped_the_server_stops(own_server):
    server = own_server(ENTROSTAT_SERVER_QUERY_TIMEOUT_S="1", ENTROSTAT_SERVER_QUERY_RESTART_S="0").start()
    server.post(server.open(), 0, {"step_metric": [{"step": 1, "name": "n", "value": 1}]})
    assert ask(server, RUNAWAY).status_code == 408
    server.process.send_signal(signal.SIGTERM)

    assert server.process.wait(PATIENCE_S) == 0


def test_a_broken_engine_is_replaced_and_not_for_ever(own_server):
    twice = {"count": 2, "times": [time.time()] * 2, "reason": "before", "listener_fd": None}
    server = own_server(program=BREAKABLE, ENTROSTAT_RESTARTED=json.dumps(twice)).start()
    assert health(server)["last_restart"] == "before"
    sender = Sender(server, server.open())
    until(lambda: sender.num_acked > 3)
    assert ask(server, BREAKING).status_code == 400
    until(lambda: restarts(server) == 3)
    until(lambda then=sender.num_acked: sender.num_acked > then + 3)
    sender.stop()
    held = server.ask("select count(*), count(distinct seq), max(seq) + 1 from batch")

    ask(server, BREAKING)
    found = until(lambda: (document := health(server)) and document["status"] == "failing" and document)

    assert held == [[sender.num_acked] * 3]
    assert "3 times within 10 minutes" in found["problem"]
    assert server.answers().status_code == 503
    server.stop()
    server.environment = ()
    assert restarts(server.start()) == 0
    assert server.ask("select count(*) from batch") == [[sender.num_acked]]


def test_the_window_of_restarts_moves_on():
    now = time.time()
    full = Past(count=7, times=(now - 500, now - 10, now - 5))
    aged = Past(count=7, times=(now - 601, now - 10, now - 5))

    assert (full.may_again, aged.may_again) == (False, True)
    assert json.loads(aged.with_another("why", 9)) == {
        "count": 8, "times": [*aged.times[1:], pytest.approx(now, abs=60)], "reason": "why", "listener_fd": 9,
    }  # fmt: skip
