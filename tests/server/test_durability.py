"""An acknowledgement is a promise: kill -9 at any moment loses nothing that was acknowledged, and doubles nothing."""

import threading
import time

import httpx
from support.patience import PATIENCE_S


def sender(server, stream, acked, stop):
    seq = 0
    while not stop.is_set():
        try:
            answer = httpx.post(
                f"{server.url}/v1/streams/{stream}/batches/{seq}",
                json={"step_metric": [{"step": seq, "name": "n", "merge": "sum", "state": [1]}] * 5},
                timeout=20,
            )
        except httpx.HTTPError:
            return
        if answer.status_code == 200:
            acked.append((stream, seq))
            seq += 1


def test_every_acknowledged_batch_is_there_once_after_a_kill(own_server):
    server = own_server().start()
    acked = []
    for turn in range(3):
        stop = threading.Event()
        streams = [server.open(run=f"r{turn}{k}", stream=10 * turn + k + 1) for k in range(4)]
        threads = [threading.Thread(target=sender, args=(server, s, acked, stop)) for s in streams]
        for thread in threads:
            thread.start()
        enough, deadline = len(acked) + 12, time.monotonic() + PATIENCE_S
        while len(acked) < enough and time.monotonic() < deadline:
            time.sleep(0.01)
        server.kill()
        stop.set()
        for thread in threads:
            thread.join()
        server.start()

    held = {(stream, seq) for stream, seq in server.ask("select stream_id, seq from batch")}
    parts = server.ask("select count(*), min(value), max(value) from step_metric where name = 'n'")
    assert len(acked) > 30
    assert set(acked) <= held
    assert parts == [[len(held), 5.0, 5.0]]  # whole batches only: five rows each, none twice


def test_what_was_sent_before_the_kill_and_is_sent_again_is_held_once(own_server):
    server = own_server().start()
    stream = server.open()
    batch = {"step_metric": [{"step": 1, "name": "n", "merge": "sum", "state": [1]}]}
    assert server.post(stream, 0, batch).json()["duplicate"] is False
    server.kill()
    server.start()

    assert server.post(stream, 0, batch).json()["duplicate"] is True
    assert server.ask("select value from step_metric") == [[1.0]]


def test_asking_the_server_to_stop_closes_the_database(own_server, tmp_path):
    server = own_server().start()
    server.post(server.open(), 0, {"step_metric": [{"step": 1, "name": "n", "value": 1}]})
    server.stop()

    assert [line.split()[1:3] for line in server.log.splitlines()] == [
        ["INFO", "started"], ["INFO", "stream_opened"], ["INFO", "stopped"],
    ]  # fmt: skip
    assert server.process.returncode == 0
    assert not (tmp_path / "data" / "entrostat.duckdb.wal").exists()
    assert server.first_line.startswith(f"entrostat server on {server.url} ")
