"""Batches over HTTP: by hand, by the codec, twice, late, broken, too large."""

import json

import numpy as np
import pyarrow as pa
import pytest

from entrostat.wire.codec import CONTENT_TYPE, encode
from entrostat.wire.tables import PROTOCOL, STEP_METRIC, TABLES

LOSS = {"step_metric": [{"step": 3, "name": "trainer/loss", "value": 0.5}]}


def metrics(*rows):
    return pa.Table.from_pylist(
        [{"step": s, "name": n, "merge": m, "state": list(v)} for s, n, m, v in rows], schema=STEP_METRIC
    )


def post_bytes(server, stream, seq, body, kind=CONTENT_TYPE):
    return server.http.post(
        f"/v1/streams/{stream}/batches/{seq}", content=body, headers={"Content-Type": kind} if kind else {}
    )


def test_a_person_with_curl_can_send_and_see(server):
    stream = server.open()
    answer = server.post(stream, 0, LOSS)

    assert answer.json() == {
        "acked": 0,
        "duplicate": False,
        "desired": {"version": 0, "interventions": [], "proposals": [], "is_armed": True, "updated": None},
        "thresholds": None,
    }
    assert server.ask("select run, step, name, value from step_metric") == [["r", 3, "trainer/loss", 0.5]]


def test_a_probe_with_arrow_can_send_every_table(server):
    stream = server.open()
    token = {"step": 1, "seq": 0, "pos": 0, "token_id": 5, "logp": -0.5, "entropy": 0.5, "reason": "all", "prob": 1.0}
    tables = {
        "step_metric": metrics((1, "entropy_mean", "mean", (4, 2))),
        "histogram": pa.Table.from_pylist(
            [{"step": 1, "name": "entropy", "bin": 180, "count": 4, "total": 2.0}], schema=TABLES["histogram"]
        ),
        "token": pa.Table.from_pylist([token], schema=TABLES["token"]),
        "event": pa.Table.from_pylist([{"time": 0, "kind": "note", "message": "hi"}], schema=TABLES["event"]),
    }
    answer = post_bytes(server, stream, 0, encode(tables))

    assert answer.status_code == 200, answer.text
    assert server.ask("select entropy_mean from step") == [[0.5]]
    assert server.ask("select count from histogram") == [[4]]
    assert server.ask("select token_id, logp from token") == [[5, -0.5]]
    assert server.http.get("/v1/runs/r/events").json()["events"][0]["kind"] == "note"


def test_a_batch_sent_again_is_acknowledged_and_held_once(server):
    stream = server.open()
    answers = [server.post(stream, 0, LOSS).json()["duplicate"] for _ in range(3)]

    assert answers == [False, True, True]
    assert server.ask("select num_parts from step_metric") == [[1]]


def test_batches_out_of_order_and_late_steps_are_kept(server):
    stream = server.open()
    for seq, step in ((5, 9), (0, 1), (2, 4), (1, 1)):
        server.post(stream, seq, {"step_metric": [{"step": step, "name": "x", "merge": "sum", "state": [1]}]})

    assert server.ask("select step, value from step_metric order by step") == [[1, 2], [4, 1], [9, 1]]


def test_two_ranks_are_added_up_and_a_step_is_complete_with_the_second(server):
    ranks = [server.open(stream=k + 1, rank=k, world_size=2) for k in (0, 1)]
    post_bytes(server, ranks[0], 0, encode({"step_metric": metrics((1, "entropy_mean", "mean", (1, 1)))}))
    assert server.ask("select value, complete from step_metric") == [[1.0, False]]
    post_bytes(server, ranks[1], 0, encode({"step_metric": metrics((1, "entropy_mean", "mean", (3, 9)))}))

    assert server.ask("select value, complete from step_metric") == [[2.5, True]]


def test_a_resumed_run_is_one_curve(server):
    first = server.open()
    server.post(first, 0, {"step_metric": [{"step": s, "name": "entropy_mean", "value": 1.0} for s in range(1, 6)]})
    second = server.open(stream=2, session=2, resume_step=3)
    server.post(second, 0, {"step_metric": [{"step": 4, "name": "entropy_mean", "value": 2.0}]})

    (series,) = server.http.get("/v1/series", params={"run": "r", "name": "entropy_mean"}).json()["series"]
    assert (series["step"], series["value"]) == ([1, 2, 3, 4], [1.0, 1.0, 1.0, 2.0])


def test_a_second_start_under_the_same_name_is_told_its_own(server):
    server.open()
    answer = server.http.put(
        f"/v1/streams/{9:032x}", json={"run_id": "r", "session_id": "f" * 32, "started": "2026-01-02T00:00:00Z"}
    )

    assert answer.json()["run_id"] == "r-2"


@pytest.mark.parametrize(
    ("tables", "table", "column"),
    [
        ({"nothing": []}, None, None),
        ({"step_metric": [{"step": "x", "name": "a", "value": 1}]}, "step_metric", "step"),
        ({"step_metric": [{"name": "a", "value": 1}]}, "step_metric", "step"),
        ({"step_metric": [{"step": -1, "name": "a", "value": 1}]}, "step_metric", "step"),
        ({"step_metric": [{"step": 1, "name": "a", "value": 1, "colour": 2}]}, "step_metric", "colour"),
        ({"step_metric": [{"step": 1, "name": "a", "merge": "median", "state": [1]}]}, "step_metric", "merge"),
        ({"step_metric": [{"step": 1, "name": "a", "merge": "mean", "state": [1]}]}, "step_metric", "state"),
        ({"histogram": [{"step": 1, "name": "entropy", "bin": 99999, "count": 1, "total": 1}]}, "histogram", "bin"),
        ({"token": [{"step": 1}]}, "token", "seq"),
        ({"event": [{"time": "yesterday", "kind": "a", "message": "b"}]}, "event", "time"),
        ({"event": {"time": 1}}, "event", None),
        ([], None, None),
    ],
)
def test_a_malformed_batch_is_refused_with_its_place(server, tables, table, column):
    answer = server.post(server.open(), 0, tables)
    body = answer.json()

    assert answer.status_code == 422
    assert (body["error"], body["table"], body["column"]) == ("malformed_batch", table, column)
    assert server.ask("select count(*) from batch") == [[0]]


def test_whatever_is_cut_or_flipped_is_never_the_servers_fault(server):
    stream = server.open()
    good = encode({"step_metric": metrics(*((s, "entropy_mean", "mean", (4, 2)) for s in range(50)))})
    rng = np.random.default_rng(0)
    bodies = [good[:n] for n in range(0, len(good), max(1, len(good) // 25))]
    for _ in range(40):
        flipped = bytearray(good)
        flipped[rng.integers(len(good))] ^= 1 << int(rng.integers(8))
        bodies.append(bytes(flipped))
    statuses = [post_bytes(server, stream, seq, body).status_code for seq, body in enumerate(bodies, start=1)]

    # An empty body is an empty batch; a flipped bit may happen to leave a batch that can be read.
    assert [s for s in statuses if s != 200 and not 400 <= s < 500] == []
    assert statuses.count(422) > len(bodies) // 2
    assert server.http.get("/healthz").json()["status"] == "ok"


def test_what_decompresses_to_too_much_is_refused(own_server):
    small = own_server(ENTROSTAT_SERVER_MAX_DECOMPRESSED_MB="1").start()
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(b"\0" * (64 * 2**20))
    bomb = bytes(sink.getvalue())
    answer = post_bytes(small, small.open(), 0, bomb)

    assert len(bomb) < 100_000
    assert (answer.status_code, answer.json()["error"]) == (413, "too_large")


def test_a_large_body_is_refused_by_its_length_and_without_it(server):
    stream = server.open()
    whole = post_bytes(server, stream, 0, b"x" * (2 * 2**20), "application/json")
    parts = post_bytes(server, stream, 0, (b"x" * 2**16 for _ in range(40)), "application/json")

    for answer in (whole, parts):
        assert (answer.status_code, answer.json()["error"]) == (413, "too_large")


def test_an_unknown_stream_is_told_to_open(server):
    answer = server.post("e" * 32, 0, LOSS)

    assert (answer.status_code, answer.json()["error"]) == (404, "unknown_stream")
    assert "PUT" in answer.json()["message"]


def test_a_newer_protocol_is_told_both_versions(server):
    stream = server.open()
    schema = STEP_METRIC.with_metadata({"table": "step_metric", "protocol": str(PROTOCOL + 1)})
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out, pa.ipc.new_stream(out, schema) as writer:
        writer.write_table(metrics((1, "a", "sum", (1,))).cast(schema))
    batch = post_bytes(server, stream, 0, bytes(sink.getvalue()))
    opening = server.http.put(
        f"/v1/streams/{7:032x}",
        json={"run_id": "x", "session_id": "0" * 32, "started": "2026-01-01T00:00:00Z", "protocol": PROTOCOL + 1},
    )

    for answer in (batch, opening):
        assert (answer.status_code, answer.json()["error"]) == (426, "unknown_version")
        assert str(PROTOCOL + 1) in answer.json()["message"]


def test_what_curl_sends_without_a_type_is_told_which(server):
    answer = post_bytes(server, server.open(), 0, json.dumps(LOSS).encode(), "application/x-www-form-urlencoded")

    assert answer.status_code == 415
    assert "application/json" in answer.json()["message"]


def test_a_typing_error_in_a_setting_of_a_stream_is_named(server):
    answer = server.http.put(
        f"/v1/streams/{1:032x}",
        json={"run_id": "a b", "session_id": "0" * 32, "started": "2026-01-01T00:00:00Z", "tag": {}},
    )
    body = answer.json()

    assert (answer.status_code, body["error"]) == (422, "invalid_request")
    assert "run_id" in body["message"]
    assert "tag" in body["message"]
