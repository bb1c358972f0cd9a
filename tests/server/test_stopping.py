"""Asked to stop, the server finishes what it took; asked twice it ends at once, and comes back with all of it."""

import signal

import httpx
from support.load import senders
from support.patience import PATIENCE_S, until

JSON = {"ENTROSTAT_SERVER_LOG_FORMAT": "json"}


def is_not_ready(server):
    answer = httpx.get(f"{server.url}/v1/ready")  # a connection of its own, as a balancer's
    return answer.status_code == 503 and answer.json()["reason"] == "stopping"


def held(server):
    return {(stream, seq) for stream, seq in server.ask("select stream_id, seq from batch")}


def gauge(server, name):
    lines = server.http.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_asked_to_stop_under_load_it_says_not_ready_first_and_loses_nothing(own_server, tmp_path):
    server = own_server(ENTROSTAT_SERVER_DRAIN_S="2", **JSON).start()
    acked = []
    streams = [server.open(run=f"r{k}", stream=k + 1) for k in range(4)]
    with senders(server.url, streams, acked):
        until(lambda: len(acked) >= 12, "nothing is acknowledged")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: is_not_ready(server), "it does not say that it stops")
        server.process.send_signal(signal.SIGINT)  # of a terminal that is closed, or from a parent: no second wish
        before = len(acked)
        until(lambda: len(acked) > before or server.process.poll() is not None, "neither taken nor stopped")
        server.process.wait(PATIENCE_S)

    assert server.process.returncode == 0
    assert not (tmp_path / "data" / "entrostat.duckdb.wal").exists()
    assert server.events("stopped")[0]["signal"] == "SIGTERM"
    assert len(acked) > before
    server.start()
    assert set(acked) <= held(server)
    started = server.events("started")
    assert [line["recovered"] for line in started] == [False, False]
    assert (started[0]["url"], started[0]["schema"] >= 1) == (server.url, True)
    assert started[0]["database"].endswith("/data/entrostat.duckdb")
    assert gauge(server, "entrostat_recovered") == 0


def test_asked_twice_it_ends_at_once_and_comes_back_with_what_was_acknowledged(own_server):
    server = own_server(ENTROSTAT_SERVER_DRAIN_S="600", **JSON).start()
    acked = []
    with senders(server.url, [server.open()], acked):
        until(lambda: len(acked) >= 3, "nothing is acknowledged")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: is_not_ready(server), "it does not say that it stops")
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE_S)
    first_start = server.events("started")[0]
    server.start()

    assert server.process.poll() is None
    assert server.events("stopped")[0] | {"time": ""} == {
        "time": "", "level": "warning", "event": "stopped", "logger": "entrostat.server.stopping",
        "code": "forced", "signal": "SIGTERM",
    }  # fmt: skip
    assert set(acked) <= held(server)
    again = server.events("started")[1]
    assert (first_start["recovered"], again["recovered"]) == (False, True)
    assert again["replayed_bytes"] > 0
    assert gauge(server, "entrostat_recovered") == 1
    assert gauge(server, "entrostat_opening_seconds") > 0
    server.kill()  # asked to stop, it would go on for ten minutes
