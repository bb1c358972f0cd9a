"""Runs out of a real server and into one over HTTP: scopes, limits, people who hang up, kill -9 in the middle."""

import socket
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pytest
from support import exported_run
from support.exports import tables_of, tar_of
from support.patience import PATIENCE_S, until

from entrostat.server.auth import add_token
from entrostat.storage.store import Store
from entrostat.wire import codec
from entrostat.wire.client import Client
from entrostat.wire.messages import ErrorBody, StreamOpen

TAR = {"Content-Type": "application/x-tar"}


def fill(server):
    with Client(server.url) as client:
        exported_run.send(
            client.open_stream, lambda stream, seq, tables: client.post_batch(stream, seq, codec.encode(tables))
        )


def error_of(answer, status):
    assert answer.status_code == status, answer.text
    return ErrorBody.model_validate_json(answer.content)


def test_a_run_goes_out_and_comes_in_again(server):
    fill(server)
    before = server.ask("select count(*), sum(entropy), sum(token_id) from token")
    answer = server.http.get("/v1/runs/full/export")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-tar"
    assert answer.headers["content-disposition"] == 'attachment; filename="full.tar"'
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert tables_of(answer.content)["token_row"].num_rows == 840

    again = server.http.post("/v1/runs/import", content=answer.content, headers=TAR)
    assert "held here already" in error_of(again, 409).message
    server.http.delete("/v1/runs/full")
    assert server.ask("select count(*) from token") == [[0]]
    taken = server.http.post("/v1/runs/import?as=back", content=answer.content, headers=TAR)

    assert taken.json()["run"] == "back"
    assert taken.json()["streams"] == 5
    assert taken.json()["rows"]["token_row"] == 840
    assert server.ask("select count(*), sum(entropy), sum(token_id) from token") == before
    assert server.http.get("/v1/runs/back").json()["last_step"] == 12
    # The body was 140 KB of a server that takes 1 MB: the limit of batches is not the import's.
    assert sorted(p.name for p in server.data.iterdir() if not p.name.startswith("entrostat.duckdb")) in (
        [],
        ["backups"],
    )


def test_what_cannot_be_taken_in_says_why(server):
    fill(server)
    tar = server.http.get("/v1/runs/full/export").content
    server.http.delete("/v1/runs/full")

    def post(content, path="/v1/runs/import", headers=TAR):
        return server.http.post(path, content=content, headers=headers)

    assert error_of(server.http.get("/v1/runs/nobody/export"), 404).error == "not_found"
    assert error_of(post(tar, headers={}), 415).error == "unknown_type"
    assert error_of(post(b""), 422).error == "malformed_export"
    assert error_of(post(tar[:-5000]), 422).error == "malformed_export"
    assert "as" in error_of(post(tar, "/v1/runs/import?as=../x"), 422).message
    assert server.http.get("/v1/runs").json()["runs"] == []


def test_who_reads_exports_and_only_an_admin_imports(own_server, tmp_path):
    tokens = {scope: add_token(tmp_path / "data" / "tokens.json", scope, [scope]) for scope in SCOPES}
    server = own_server().start()
    headers = {scope: {"Authorization": f"Bearer {token}"} for scope, token in tokens.items()}
    with Client(server.url, tokens["ingest"]) as client:
        client.open_stream(exported_run.stream_id(1), opening_of("full"))
    tar = server.http.get("/v1/runs/full/export", headers=headers["read"]).content

    def codes(request):
        return {scope: request(headers[scope]).status_code for scope in SCOPES} | {None: request({}).status_code}

    assert codes(lambda given: server.http.get("/v1/runs/full/export", headers=given)) == {
        "read": 200, "ingest": 403, "control": 403, "admin": 200, None: 401,
    }  # fmt: skip
    assert codes(lambda given: server.http.post("/v1/runs/import", content=tar, headers=TAR | given)) == {
        "read": 403, "ingest": 403, "control": 403, "admin": 409, None: 401,
    }  # fmt: skip


SCOPES = ("read", "ingest", "control", "admin")


def opening_of(run):
    return StreamOpen(run_id=run, session_id=exported_run.stream_id(1), started=exported_run.BEGAN)


def say(server, head, body=b""):
    """A request by hand; the socket stays open."""
    plug = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
    plug.sendall(f"{head}\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode().replace(b"; ", b"\r\n") + body)
    return plug


def post_by_hand(server, num_bytes, body=b""):
    head = f"POST /v1/runs/import HTTP/1.1; Content-Type: application/x-tar; Content-Length: {num_bytes}"
    return say(server, head, body)


def test_sizes_disk_and_slots_are_limits(own_server):
    server = own_server(
        ENTROSTAT_SERVER_MAX_IMPORT_MB="1", ENTROSTAT_SERVER_MAX_BODY_MB="1", ENTROSTAT_SERVER_MAX_TRANSFERS="1"
    ).start()
    fill(server)
    tar = server.http.get("/v1/runs/full/export").content
    large = server.http.post("/v1/runs/import", content=tar + bytes(2**20), headers=TAR)
    assert "max_import_mb" in error_of(large, 413).message
    # Without a declared length it is refused as soon as it is over.
    pieces = iter([tar, bytes(2**19), bytes(2**19), bytes(2**19)])
    assert "max_import_mb" in error_of(server.http.post("/v1/runs/import", content=pieces, headers=TAR), 413).message

    with post_by_hand(server, 2**20 - 1, tar[:1000]):  # somebody sends, slowly
        busy = until(lambda: found if (found := server.http.get("/v1/runs/full/export")).status_code != 200 else None)
        assert error_of(busy, 503).error == "busy"
        assert busy.headers["Retry-After"] == "10"
        assert server.ask("select count(*) > 0 from token") == [[True]]
    until(lambda: server.http.get("/v1/runs/full/export").status_code == 200, "who hung up holds the slot")

    with say(server, "GET /v1/runs/full/export HTTP/1.1; X: y") as half:
        assert half.recv(100)  # and goes away
    until(lambda: server.http.get("/v1/runs/full/export").status_code == 200, "who hung up holds the slot")


def test_a_disk_that_is_too_full_is_said_before_anything_is_read(own_server):
    server = own_server(ENTROSTAT_SERVER_MAX_IMPORT_MB=str(2**40)).start()
    with post_by_hand(server, 2**50) as plug:
        answer = b""
        while b"}" not in answer:
            answer += plug.recv(4096)

    assert answer.startswith(b"HTTP/1.1 507")
    assert b'"no_room"' in answer


@pytest.fixture(scope="module")
def large_tar(tmp_path_factory):
    """300,000 token rows: taking them in lasts a moment."""
    with Store(f"duckdb://{tmp_path_factory.mktemp('large') / 'a.duckdb'}") as store:
        exported_run.fill(store, run="large")
        token = exported_run.batch(np.random.default_rng(0), [3], 0)["token"]
        tables = {"token": pa.concat_tables([token] * 15_000)}
        store.add_batch(exported_run.stream_id(1, "large"), 500, tables, 10).result(PATIENCE_S)
        return tar_of(store, "large")


def reader_of(server):
    """The process that reads an import's files, once it is there."""
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


def post_large(server, tar, answers):
    try:
        answers.append(httpx.post(f"{server.url}/v1/runs/import", content=tar, headers=TAR, timeout=PATIENCE_S))
    except httpx.HTTPError:
        answers.append(None)


def killed_during_import(server, tar, wait_s):
    """Kill the server so long after an import has begun; returns whether the import was answered before."""
    answers = []
    sender = threading.Thread(target=post_large, args=(server, tar, answers))
    sender.start()
    until(lambda: answers or reader_of(server), "the import never began")
    time.sleep(wait_s)
    server.kill()
    sender.join()
    server.start()
    return answers[0] is not None


def test_a_kill_during_an_import_leaves_no_half_run(own_server, large_tar):
    server = own_server().start()
    server.post(server.open("mine"), 0, {"step_metric": [{"step": 1, "name": "n", "value": 1}]})
    for wait_s in (0.0, 0.3, 0.8):
        was_answered = killed_during_import(server, large_tar, wait_s)
        runs = {run["run"] for run in server.http.get("/v1/runs").json()["runs"]}
        count = server.ask("select count(*) from token")[0][0]
        assert (runs, count) in (({"mine"}, 0), ({"mine", "large"}, 300_720))
        assert not was_answered or count
        if count:
            server.http.delete("/v1/runs/large").raise_for_status()
    server.http.post("/v1/runs/import", content=large_tar, headers=TAR).raise_for_status()
    assert server.ask("select count(*) from token") == [[300_720]]
    server.stop()
    with Store(f"duckdb://{server.data / 'entrostat.duckdb'}") as store:  # nothing beneath the views either
        found = store.write(lambda cursor: cursor.execute("select count(*) from raw.token_row").fetchall())
    assert found == [(300_840,)]


def test_a_stop_during_an_import_waits_for_no_import(own_server, large_tar):
    server = own_server().start()
    sender = threading.Thread(target=post_large, args=(server, large_tar, []))
    sender.start()
    until(lambda: not sender.is_alive() or reader_of(server), "the import never began")
    server.stop()
    sender.join()

    assert server.process.returncode == 0
    with Store(f"duckdb://{server.data / 'entrostat.duckdb'}") as store:
        count = store.query("select count(*) from token", 1).table[0][0].as_py()
    assert count in (0, 300_720)
