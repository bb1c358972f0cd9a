"""The real server and the same bodies: a refusal by name, nothing of it stored, the process alive and no larger."""

import random
import socket
import time
from pathlib import Path

import httpx
import pytest
from support.faults import FAULTS
from support.hostile import bombs, crafted, sound_tables, unpacked, zstd
from support.patience import until

from entrostat.wire.codec import CONTENT_TYPE, encode
from entrostat.wire.tables import TABLES

EXAMPLES = (FAULTS or 5) * 60
VIEWS = ("step", "step_metric", "histogram", "profile", "sequence", "prompt", "token", "event", "stream", "run")


def post(server, stream, seq, body, **headers):
    return server.http.post(
        f"/v1/streams/{stream}/batches/{seq}", content=body, headers={"Content-Type": CONTENT_TYPE, **headers}
    )


def held(server):
    """Batches, and rows of every kind."""
    return [server.ask(f"select count(*) from {view}") for view in ("batch", *VIEWS[:-2])]


def peak_mb(server):
    """The most memory that the process ever had."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def test_what_our_encoder_would_never_write_is_refused_and_leaves_nothing(server):
    stream, before = server.open(), held(server)
    for seq, (title, body) in enumerate(crafted().items()):
        answer = post(server, stream, seq, body)
        assert (answer.status_code, answer.json()["error"]) == (422, "malformed_batch"), title

    assert held(server) == before


def test_damage_is_refused_or_harmless_and_every_page_can_still_be_read(own_server):
    server = own_server().start()
    stream = server.open()
    raw, chance = unpacked(encode(sound_tables())), random.Random(3)
    accepted, refused = 0, 0
    for seq in range(EXAMPLES):
        damaged = bytearray(raw)
        for _ in range(chance.choice((1, 1, 2, 4))):
            at = chance.randrange(len(raw) // 8) * 8
            damaged[at : at + 8] = chance.choice((2**63 - 1, 2**31, 1, 2**64 - 1, chance.randrange(2**64))).to_bytes(
                8, "little"
            )
        answer = post(server, stream, seq, zstd(bytes(damaged)))
        assert answer.status_code in (200, 422, 413, 426), answer.text
        accepted, refused = accepted + (answer.status_code == 200), refused + (answer.status_code != 200)

    assert min(accepted, refused) > EXAMPLES // 20
    assert server.ask("select count(*) from batch") == [[accepted]]
    for view in VIEWS:
        answer = server.http.post("/v1/sql", json={"sql": f"select * from {view}"})
        assert answer.status_code == 200, (view, answer.text)
    for path in ("", "/events", "/control", "/effects", "/analysis", "/histogram"):
        answer = server.http.get(f"/v1/runs/r{path}")
        assert answer.status_code in (200, 404), (path, answer.text)


def test_values_at_the_ends_of_what_may_be_leave_every_view_readable(own_server):
    """One run with a NaN log-prob took the view ``step`` from all runs: DuckDB's stddev_pop raises on it."""
    server = own_server().start()
    last = 2**31 - 1
    response = {"step": 1, "seq": 0, "prompt": 1, "length": last, "reward": float("nan"), "advantage": float("-inf")}
    response |= {"mean_logp": float("nan"), "mean_entropy": float("inf"), "ppl": float("inf")}
    histogram = {"step": last, "name": "entropy", "bin": 305, "count": 2**40, "total": float("inf")}
    metric = {"step": last, "name": "entropy_mean", "merge": "mean", "state": [float("inf"), float("nan")]}
    tables = {
        "sequence": [response, response | {"seq": 1, "mean_logp": -1.0}],
        "histogram": [histogram, histogram | {"bin": -305, "count": 0}],
        "step_metric": [metric],
    }
    batch = {name: TABLES[name].empty_table().from_pylist(rows, schema=TABLES[name]) for name, rows in tables.items()}
    assert post(server, server.open(), 0, encode(batch)).status_code == 200
    other = server.open(run="other", stream=2, session=2)
    server.post(other, 0, {"step_metric": [{"step": 1, "name": "entropy_mean", "value": 0.5}]})

    for view in VIEWS:
        answer = server.http.post("/v1/sql", json={"sql": f"select * from {view}"})
        assert answer.status_code == 200, (view, answer.text)
    assert server.ask("select entropy_mean from step where run = 'other'") == [[0.5]]


def test_bombs_are_refused_and_take_no_memory(own_server):
    server = own_server(ENTROSTAT_SERVER_MAX_DECOMPRESSED_MB="16").start()
    stream = server.open()
    server.post(stream, 0, {"step_metric": [{"step": 1, "name": "a", "value": 1}]})
    made, before = bombs(160 * 2**20), peak_mb(server)
    for _ in range(3):
        for title, body in made.items():
            assert post(server, stream, 1, body).status_code in (413, 422), title

    assert peak_mb(server) - before < 120


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"pid": 2**70}, "pid"), ({"rank": 2**40}, "rank"), ({"resume_step": 2**31}, "resume_step"),
        ({"world_size": True}, "world_size"), ({"started": "0001-01-01T00:00:00+14:00"}, "started"),
        ({"started": "9999-12-31T23:59:59-12:00"}, "started"), ({"producer": " Server"}, "producer"),
        ({"run_id": "../../etc/passwd"}, "run_id"), ({"run_id": "a\0"}, "run_id"), ({"run_id": "a\n"}, "run_id"),
        ({"run_id": "a" * 10_000}, "run_id"), ({"session_id": "%2e%2e%2f"}, "session_id"),
    ],
)  # fmt: skip
def test_what_a_producer_says_of_itself_is_refused_by_field(server, change, field):
    body = {"run_id": "r", "session_id": f"{1:032x}", "started": "2026-01-01T00:00:00Z"} | change
    answer = server.http.put(f"/v1/streams/{1:032x}", json=body)

    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_request")
    assert f"body.{field}" in answer.json()["message"]
    assert server.http.get("/v1/runs").json()["runs"] == []


@pytest.mark.parametrize(
    "text",
    [
        b'{"config": {"a": "\\ud800"}, %s}', b'{"tags": {"a": "\\udfff"}, %s}', b'{"run_id": "other", %s}',
        b'{"config": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}, %s}", b'{"pid": ' + b"9" * 5000 + b", %s}",
        b'{"trainer": "\xff", %s}', b"{%s", b"[" * 100_000, b"\xff\xfe{%s}",
    ],
)  # fmt: skip
def test_json_that_others_would_read_differently_is_refused(server, text):
    rest = b'"run_id": "r", "session_id": "%032x", "started": "2026-01-01T00:00:00Z"' % 1
    body = text.replace(b"%s", rest)
    answer = server.http.put(f"/v1/streams/{1:032x}", content=body, headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_request")


def test_what_is_no_number_goes_out_as_null_and_sql_reads_the_settings(server):
    text = (
        b'{"config": {"a": NaN, "b": 1}, "run_id": "r", "session_id": "%032x", "started": "2026-01-01T00:00:00Z"}' % 1
    )
    answer = server.http.put(f"/v1/streams/{1:032x}", content=text, headers={"Content-Type": "application/json"})

    assert answer.status_code == 200, answer.text
    assert server.http.get("/v1/runs/r").json()["config"] == {"a": None, "b": 1}
    assert server.ask("select config->>'b' from run") == [["1"]]


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({"Content-Type": "text/plain"}, 415, "unknown_type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "unknown_type"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415, "unknown_encoding"),
        ({"Content-Type": "application/json", "Content-Length": "9" * 15}, 413, "too_large"),
    ],
)
def test_bodies_of_another_type_or_encoding_are_refused_before_they_are_read(server, headers, status, error):
    path = f"/v1/streams/{1:032x}"
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        lines = [f"PUT {path} HTTP/1.1", "Host: localhost", *(f"{k}: {v}" for k, v in headers.items())]
        lines += [] if "Content-Length" in headers else ["Content-Length: 1000000"]
        wire.sendall("\r\n".join([*lines, "", ""]).encode())  # and not a byte of the body
        said = wire.recv(65536).decode()
        said += "" if error in said else wire.recv(65536).decode()

    assert f" {status} " in said.splitlines()[0]
    assert error in said


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runs/..%2f..%2fetc%2fpasswd", "/v1/runs/%2e%2e", "/v1/runs/%00", "/v1/runs/" + "a" * 20_000,
        "/v1/runs/r%0a", "/%2e%2e/%2e%2e/etc/passwd", "/v1/runs/..;/..;/", "/v1/streams/..%5c..%5c/batches/0",
        "/v1/runs/r/../../../etc/passwd", "//etc/passwd", "/v1/rules/%2e%2e%2f", "/v1/runs/\u202e/events",
    ],
)  # fmt: skip
def test_a_path_is_never_anything_but_a_name(server, path):
    for method in ("GET", "PUT", "DELETE"):
        answer = server.http.request(method, httpx.URL(server.url + path))
        assert answer.status_code in (404, 405, 415, 422), (method, answer.text)
        assert "root:" not in answer.text


def test_who_stops_sending_is_let_go_and_others_are_served(own_server):
    server = own_server(ENTROSTAT_SERVER_BODY_PATIENCE_S="1", ENTROSTAT_SERVER_HEAD_PATIENCE_S="1").start()
    stream = server.open()
    head = b"PUT /v1/streams/%032x HTTP/1.1\r\nHost: localhost\r\n" % 1
    whole = head + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    for place, wire in enumerate(slow):
        wire.sendall((head, whole, b"")[place % 3])
    assert server.post(stream, 0, {"step_metric": [{"step": 1, "name": "a", "value": 1}]}).status_code == 200

    for place, wire in enumerate(slow):
        wire.settimeout(60)
        said = read_to_the_end(wire)
        if place % 3 == 1:
            assert " 408 " in said.splitlines()[0]
            assert "slow_body" in said
        else:
            assert said == ""
        wire.close()


def read_to_the_end(wire):
    said = b""
    while part := wire.recv(65536):
        said += part
    return said.decode()


def test_more_connections_than_may_be_are_told_to_come_again(own_server):
    server = own_server(ENTROSTAT_SERVER_MAX_CONNECTIONS="8").start()
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(12)]
    until(lambda: httpx.get(f"{server.url}/healthz", trust_env=False).status_code == 503)
    for wire in idle:
        wire.close()

    until(lambda: httpx.get(f"{server.url}/healthz", trust_env=False).status_code == 200)


def test_a_head_without_end_is_refused(server):
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        wire.settimeout(60)
        wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 200_000)
        started = time.monotonic()
        assert " 400 " in wire.recv(65536).decode().splitlines()[0]
        assert time.monotonic() - started < 60

    assert server.http.get("/healthz").status_code == 200


def test_without_a_token_no_byte_of_a_body_is_read(own_server, tmp_path):
    from entrostat.server.auth import add_token

    add_token(tmp_path / "data" / "tokens.json", "someone", ["ingest"])
    server = own_server().start()
    for said in ("", "Authorization: Bearer es_wrong\r\n", "Authorization: Basic abc\r\n"):
        with socket.create_connection(("127.0.0.1", server.port)) as wire:
            wire.settimeout(60)
            wire.sendall(
                f"PUT /v1/streams/{1:032x} HTTP/1.1\r\nHost: x\r\n{said}Content-Length: 1000000\r\n\r\n".encode()
            )
            assert " 401 " in wire.recv(65536).decode().splitlines()[0]


def test_an_answer_tells_a_browser_that_it_is_no_page(server):
    for path in ("/v1/runs", "/healthz", "/nothing", "/v1/runs/%00"):
        headers = server.http.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]
    assert "content-security-policy" not in server.http.get("/docs").headers
