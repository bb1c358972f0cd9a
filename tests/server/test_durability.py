"""An acknowledgement is a promise: kill -9 at any moment loses nothing that was acknowledged, and doubles nothing."""

from support.load import senders
from support.patience import until


def test_every_acknowledged_batch_is_there_once_after_a_kill(own_server):
    server = own_server().start()
    acked = []
    for turn in range(3):
        streams = [server.open(run=f"r{turn}{k}", stream=10 * turn + k + 1) for k in range(4)]
        enough = len(acked) + 12
        with senders(server.url, streams, acked):
            until(lambda: len(acked) >= enough, "nothing is acknowledged")  # noqa: B023 it is waited for here
            server.kill()
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
