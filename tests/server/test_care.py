"""Backups of a server that takes batches, kill -9 in the middle of one, restoring, checking, retention, deleting."""

import json
import os
import subprocess
import sys
import threading

import duckdb
import httpx
import pyarrow as pa
import pytest
from support.full_batch import full_batch, many_tokens
from support.patience import PATIENCE_S, until

from entrostat.server.auth import add_token
from entrostat.storage import schema
from entrostat.storage.store import Store
from entrostat.wire import codec
from entrostat.wire.errors import NotFound
from entrostat.wire.messages import StreamOpen
from entrostat.wire.sender import Sender
from entrostat.wire.tables import STEP_METRIC

ENDED = {"event": [{"time": "2026-01-01T00:00:00", "kind": "run_ended", "message": ""}]}


def entrostat(*arguments, check=True):
    done = subprocess.run(
        [sys.executable, "-m", "entrostat.cli.main", *map(str, arguments)],
        capture_output=True, check=False, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stderr
    return done


def rows(step):
    return {"step_metric": [{"step": step, "name": "n", "merge": "sum", "state": [1]}] * 5}


class Senders:
    """Three streams that send batches of five rows until they are stopped."""

    def __init__(self, server):
        self.acked, self.stop = [], threading.Event()
        streams = [server.open(run=f"r{k}", stream=k + 1, session=k + 1) for k in range(3)]
        self.threads = [threading.Thread(target=self._send, args=(server.url, s)) for s in streams]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _send(self, url, stream):
        seq = 0
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as http:
            while not self.stop.is_set():
                try:
                    answer = http.post(f"{url}/v1/streams/{stream}/batches/{seq}", json=rows(seq))
                except httpx.HTTPError:
                    return
                assert answer.status_code == 200, answer.text
                self.acked.append((stream, seq))
                seq += 1


def test_a_server_is_copied_restored_and_sent_to_again_under_ingest(own_server, tmp_path):
    server = own_server().start()
    with Senders(server) as senders:
        until(lambda: len(senders.acked) > 10)
        before = set(senders.acked)
        said = entrostat("backup", "--url", server.url, "--to", tmp_path / "copy.duckdb").stdout
        after_copy = len(senders.acked)
        until(lambda: len(senders.acked) > after_copy + 5)
    sound = entrostat("check", "--url", server.url).stdout
    held = entrostat("restore", tmp_path / "copy.duckdb", "--data", tmp_path / "data", check=False)
    server.stop()

    assert "3 runs" in said
    assert "is sound" in sound
    assert server.http is not None
    assert held.returncode == 1
    assert "a server has" in held.stderr

    with duckdb.connect(str(tmp_path / "copy.duckdb"), read_only=True) as copy:
        batches = set(copy.execute("select stream_id, seq from raw.batch").fetchall())
        assert copy.execute("select count(*) from raw.step_part").fetchall() == [(5 * len(batches),)]
    assert before <= batches < set(senders.acked)

    told = entrostat("restore", tmp_path / "copy.duckdb", "--data", tmp_path / "data").stdout
    assert "before-restore-" in told
    server.start()
    assert {tuple(row) for row in server.ask("select stream_id, seq from batch")} == batches
    for stream, seq in senders.acked:  # a producer that sends everything again
        assert server.post(stream, seq, rows(seq)).json()["duplicate"] is ((stream, seq) in batches)
    assert server.ask("select count(*), min(value), max(value) from step_metric where name = 'n'") == [
        [len(senders.acked), 5.0, 5.0]
    ]
    assert server.http.get("/v1/check").json()["findings"] == []


def test_the_copies_on_the_server_are_listed_fetched_and_removed(server):
    http = server.http
    server.post(server.open(), 0, rows(1))
    made = http.post("/v1/backups")
    body = made.json()
    assert made.status_code == 201
    assert (body["num_batches"], body["schema_version"]) == (1, schema.SCHEMA_VERSION)
    assert 0 < body["held_s"] < PATIENCE_S

    listed = http.get("/v1/backups").json()["backups"]
    assert listed == [{key: body[key] for key in ("name", "created", "num_bytes")}]
    fetched = http.get(f"/v1/backups/{body['name']}").content
    assert len(fetched) == body["num_bytes"]
    assert fetched == (server.data / "backups" / body["name"]).read_bytes()
    assert http.delete(f"/v1/backups/{body['name']}").status_code == 204
    assert http.get("/v1/backups").json()["backups"] == []
    for name in (body["name"], "..%2Fentrostat.duckdb", "tokens.json", "%2e%2e", "x" * 65):
        for method in ("GET", "DELETE"):
            assert http.request(method, f"/v1/backups/{name}").status_code in (404, 422), name
    assert http.get("/v1/runs").json()["runs"]


def test_looking_after_the_data_needs_an_admins_token(own_server, tmp_path):
    tokens = tmp_path / "tokens.json"
    weak = add_token(tokens, "reader", ["read", "control", "ingest"])
    strong = add_token(tokens, "boss", ["admin"])
    server = own_server("--tokens", str(tokens)).start()
    routes = [("POST", ""), ("GET", ""), ("GET", "/x"), ("DELETE", "/x")]
    for method, path in [(m, f"/v1/backups{p}") for m, p in routes] + [("GET", "/v1/check")]:
        for token, status in ((None, 401), (weak, 403)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            assert server.http.request(method, path, headers=headers).status_code == status, (method, path)
        allowed = server.http.request(method, path, headers={"Authorization": f"Bearer {strong}"})
        assert allowed.status_code in (200, 201, 404)


def test_a_server_killed_in_the_middle_of_a_copy_has_lost_nothing(own_server, tmp_path):
    server = own_server().start()
    stream = server.open("big", stream=9, session=9)
    body = codec.encode({"token": many_tokens(1, 400_000)})
    headers = {"Content-Type": codec.CONTENT_TYPE}
    sent = [server.http.post(f"/v1/streams/{stream}/batches/{k}", content=body, headers=headers) for k in range(3)]
    assert [answer.status_code for answer in sent] == [200] * 3
    folder = tmp_path / "data" / "backups"
    with Senders(server) as senders:
        until(lambda: len(senders.acked) > 5)
        asking = threading.Thread(target=_ask_for_a_copy, args=(server.url,))
        asking.start()
        until(lambda: list(folder.glob("*.partial")), every_s=0.0005)
        server.kill()
        asking.join()
    left = [path.name for path in folder.iterdir()]

    assert left
    assert all(name.endswith((".partial", ".partial.wal")) for name in left)
    server.start()
    assert list(folder.iterdir()) == []
    held = {tuple(row) for row in server.ask("select stream_id, seq from batch")}
    assert set(senders.acked) <= held
    assert server.http.get("/v1/check").json()["is_sound"]
    assert server.http.post("/v1/backups").json()["num_batches"] == len(held)


def _ask_for_a_copy(url):
    try:
        httpx.post(f"{url}/v1/backups", timeout=PATIENCE_S, trust_env=False)
    except httpx.HTTPError:
        return  # it was killed


def test_a_damaged_copy_is_named_by_check_and_refused_by_restore(tmp_path):
    path = tmp_path / "entrostat.duckdb"
    with Store(f"duckdb://{path}") as store:
        store.open_stream("1" * 32, StreamOpen(run_id="r", session_id="1" * 32, started="2026-01-01T00:00:00Z"))
        store.add_batch("1" * 32, 0, {"token": many_tokens(1, 60_000)}, 1).result(60)
    assert "is sound; " in entrostat("check", "--data", tmp_path).stdout
    with duckdb.connect(str(path), read_only=True) as file:
        [(block,)] = file.execute(
            "select max(block_id) from pragma_storage_info('raw.token_row') where column_name = 'pos'"
        ).fetchall()
    whole, at = path.read_bytes(), 3 * 4096 + block * 262_144 + 1000
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    checked = entrostat("check", path, check=False)
    refused = entrostat("restore", path, "--data", tmp_path / "other", check=False)

    assert checked.returncode == 1
    assert "DAMAGE" in checked.stdout
    assert "checksum" in checked.stdout
    assert "restore a backup" in checked.stderr
    assert refused.returncode == 1
    assert "is damaged and was not restored" in refused.stderr
    assert not (tmp_path / "other" / "entrostat.duckdb").exists()


def test_what_is_wrong_is_one_line(tmp_path):
    (tmp_path / "there").write_text("")
    for arguments in (
        ("check", "--data", tmp_path), ("restore", tmp_path / "nowhere"), ("backup", "--to", tmp_path / "there"),
    ):  # fmt: skip
        done = entrostat(*arguments, check=False)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("entrostat: ")


def test_retention_works_while_the_server_runs_and_is_seen_everywhere(own_server):
    server = own_server().start()
    for k, run in enumerate(("done", "in-use")):
        stream = server.open(run, stream=k + 1, session=k + 1)
        assert server.post(stream, 0, full_batch(1)).status_code == 200
        if run == "done":
            server.post(stream, 1, ENDED)
    server.stop()
    server.environment = (("ENTROSTAT_SERVER_KEEP_TOKEN_DAYS", "0.000001"),)
    server.start()
    until(lambda: "rows_removed" in {e["kind"] for e in server.http.get("/v1/runs/done/events").json()["events"]})
    run = server.http.get("/v1/runs/done").json()

    assert {(r["what"], r["num_rows"], r["from_step"], r["to_step"]) for r in run["removed"]} == {
        ("token", 3, 1, 1), ("sequence", 1, 1, 1),
    }  # fmt: skip
    assert run["tokens_removed"]
    assert server.ask("select run, count(*) from token group by run") == [["in-use", 3]]
    listed = json.loads(entrostat("runs", "list", "--url", server.url, "--format", "json").stdout)
    assert {run["run"]: bool(run["tokens_removed"]) for run in listed} == {"done": True, "in-use": False}
    assert entrostat("check", "--url", server.url).returncode == 0


# Deleting a run -----------------------------------------------------------------------------------------------------


def test_a_deleted_run_leaves_no_row_in_any_table_but_its_record(own_server, tmp_path):
    server = own_server().start()
    for k, run in enumerate(("gone", "stays")):
        stream = server.open(run, stream=k + 1, session=k + 1, settings={"baseline_steps": 2},
                             permissions={"mode": "act", "allow": ["scope"]})  # fmt: skip
        for step in range(5):
            server.post(stream, step, full_batch(step))
        on = {"because": "a test", "person": "anna"}
        assert server.http.put(f"/v1/runs/{run}/interventions/scope", json=on).status_code == 200
    server.stop()
    path = tmp_path / "data" / "entrostat.duckdb"
    with duckdb.connect(str(path)) as file:  # what else has to be there, so that every table is looked at
        for key in (1, 2):
            file.execute("insert into raw.rule_state values (?, 'x', 1, 1, '{}')", [key])
            file.execute("insert into raw.removal values (?, 'x', 1, 'token', 0, 1, 1, now()::timestamp, 'x')", [key])
    server.start()
    assert "deleted gone" in entrostat("runs", "delete", "gone", "--yes", "--url", server.url).stdout
    assert server.ask("select what, reason from removal where run = 'gone'") == [["run", "deleted on request"]]
    server.stop()

    with duckdb.connect(str(path), read_only=True) as file:
        tables = file.execute(
            "select table_name from duckdb_columns() where schema_name = 'raw' and column_name = 'run' "
            "and table_name in (select table_name from duckdb_tables()) order by all"
        ).fetchall()
        left = {name: file.execute(f"select distinct run from raw.{name} order by 1").fetchall() for (name,) in tables}
        texts = _texts(file)
    assert {name for name, runs in left.items() if runs != [(2,)]} == {"removal"}
    assert left["removal"] == [(2,), (None,)]
    assert len(left) >= 13
    assert {name for name, text in texts.items() if "gone" in text} == {"removal", "audit"}
    assert entrostat("check", "--data", tmp_path / "data").returncode == 0


def _texts(file):
    names = [n for (n,) in file.execute("select table_name from duckdb_tables() where schema_name = 'raw'").fetchall()]
    return {name: str(file.execute(f"select t::varchar from raw.{name} t").fetchall()) for name in names}


def test_a_producer_whose_run_is_deleted_goes_on_in_a_new_run_of_that_name(server, tmp_path):
    """What it had sent is gone, as asked; what it sends from then on is kept, each batch once."""
    opening = StreamOpen(run_id="mine", session_id="1" * 32, started="2026-01-01T00:00:00Z")
    sender = Sender(opening, url=server.url, token=None, root=tmp_path / "spool", linger_s=0.0)
    try:
        _put(sender, 1)
        until(lambda: server.ask("select count(*) from step_metric where run = 'mine' and name = 'n'") == [[1]])
        assert server.http.delete("/v1/runs/mine").status_code == 204
        assert server.post(f"{7:032x}", 0, rows(1)).json()["error"] == "unknown_stream"
        _put(sender, 2)
        until(lambda: server.ask("select step, value from step_metric where run = 'mine' and name = 'n'") == [[2, 1.0]])
    finally:
        sender.close(PATIENCE_S)

    assert server.ask("select what from removal where run = 'mine'") == [["run"]]
    assert server.http.get("/v1/check").json()["is_sound"]
    assert list((tmp_path / "spool").glob("**/*.batch")) == []


def _put(sender, step):
    row = {"step": step, "name": "n", "merge": "sum", "state": [1.0]}
    sender.put(lambda: {"step_metric": pa.Table.from_pylist([row], schema=STEP_METRIC)}, 100)


def test_batches_that_wait_while_their_run_is_deleted_are_refused_not_left_behind(tmp_path):
    """Their keys may be another run's by the time they are written."""
    with Store(f"duckdb://{tmp_path / 'x.duckdb'}", linger_s=0.0) as store:
        opening = StreamOpen(run_id="r", session_id="1" * 32, started="2026-01-01T00:00:00Z")
        store.open_stream("1" * 32, opening)
        begun, go_on = threading.Event(), threading.Event()
        threading.Thread(target=store._writer.hold_still, args=(lambda _: (begun.set(), go_on.wait(60)),)).start()
        begun.wait(60)
        deleting = threading.Thread(target=store.delete_run, args=("r",))
        deleting.start()
        until(lambda: len(store._writer._queue) == 1)
        tables = codec.decode_json(json.dumps(full_batch(1)).encode())
        waiting = store.add_batch("1" * 32, 0, tables, 1)
        go_on.set()
        with pytest.raises(NotFound, match="open it with PUT"):
            waiting.result(60)
        deleting.join()

        assert store.check().findings == ()
        assert store._database.rows("select count(*) from raw.batch") == [(0,)]
        assert store.queue_bytes == 0
        store.open_stream("1" * 32, opening)  # the same keys again, by chance
        assert store.add_batch("1" * 32, 0, tables, 1).result(60) is False
