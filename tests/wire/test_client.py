"""The client and push: one error for each kind of trouble, each with what to do."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pyarrow as pa
import pytest

from entrostat.wire.client import Client, push, refusal
from entrostat.wire.codec import encode
from entrostat.wire.errors import EntrostatError, Refused, ServerDown, SpoolError
from entrostat.wire.retry import Backoff, Verdict, verdict_on
from entrostat.wire.spool import SpoolStream, pending_streams


@pytest.fixture
def client(server):
    with Client(server.url + "/") as client:
        yield client


@pytest.fixture
def spool(tmp_path, opening, metric):
    """Makes a stream with batches, as a process that died leaves it."""

    def make(stream_id, num_batches, started=None):
        stream = SpoolStream.create(
            tmp_path, opening.model_copy(update={"started": started or opening.started}), stream_id
        )
        for seq in range(num_batches):
            stream.write(seq, encode({"step_metric": metric(seq)}))
        stream.release()

    return make


def test_documents_and_parameters(server, client):
    assert client.runs(search="a b", limit=None) == [{"run": "r"}]
    client.get("/v1/runs", name=["a", "b"], to_step=0)
    client.desired("../x")
    paths = [path for _, path, _, _ in server.requests]
    assert paths == ["/v1/runs?search=a+b", "/v1/runs?name=a&name=b&to_step=0", "/v1/runs/..%2Fx/desired"]


def test_a_refusal_carries_the_servers_words_and_the_place(client):
    with pytest.raises(Refused, match=r"404 not_found: no such page.*table t, column c") as caught:
        client.get("/nowhere")
    assert (caught.value.status, caught.value.code) == (404, "not_found")


def test_nobody_there_is_one_error_with_what_to_do(server, client):
    server.stop()
    with pytest.raises(ServerDown, match="entrostat up") as caught:
        client.health()
    assert caught.value.url == server.url
    assert isinstance(caught.value, EntrostatError)


def test_a_slow_server_is_a_server_down(server, opening):
    server.script.append("hang")
    with Client(server.url, timeout_s=0.2) as client, pytest.raises(ServerDown, match="timed out"):
        client.post_batch("a" * 32, 0, b"")


def test_something_else_at_the_address_is_said(client):
    with pytest.raises(ServerDown, match="JSON"):
        client.get("/html")


def test_an_acknowledgement_of_another_batch_is_none(server, client, opening, monkeypatch):
    answer = json.dumps({"acked": 7, "desired": {"version": 0}}).encode()
    monkeypatch.setattr(client, "_request", lambda *a, **k: httpx.Response(200, content=answer))
    with pytest.raises(ServerDown, match=r"batch 3 .* batch 7"):
        client.post_batch("a" * 32, 3, b"")


def test_sql_gives_a_table_and_whether_it_was_cut(client, monkeypatch):
    table = pa.table({"a": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue().to_pybytes()
    for header, is_cut in (("true", True), ("1", True), ("false", False)):
        response = httpx.Response(200, content=content, headers={"X-Truncated": header})
        monkeypatch.setattr(client, "_request", lambda *a, r=response, **k: r)
        assert client.sql("select 1") == (table, is_cut)
    monkeypatch.setattr(client, "_request", lambda *a, **k: httpx.Response(200, content=b"no"))
    with pytest.raises(ServerDown, match="rows"):
        client.sql("select 1")


@pytest.mark.parametrize("url", ["", "localhost:8321", "ftp://x", "http://", "http://[::1"])
def test_what_is_no_address_is_refused_at_once(url):
    with pytest.raises(ValueError, match="address"):
        Client(url)


def test_what_is_no_token_is_refused_without_showing_it():
    with pytest.raises(ValueError, match="ENTROSTAT_TOKEN") as caught:
        Client("http://x", token="geheimnis\x00ü")
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("3", 3, 3),
        ("2.5", 2.5, 2.5),
        (timedelta(hours=1), 3000, 3600),
        (timedelta(seconds=-60), 0, 0),
    ],
)
def test_retry_after_is_read_in_seconds_or_as_a_date(header, low, high):
    if isinstance(header, timedelta):  # from now, not from when the tests were collected
        header = format_datetime(datetime.now(UTC) + header)
    refused = refusal(httpx.Response(503, headers={"Retry-After": header}, content=b"<html>busy"))
    assert low <= refused.retry_after_s <= high
    assert (refused.code, refused.message) == ("http_503", "<html>busy")


@pytest.mark.parametrize("header", ["soon", "-1", ""])
def test_a_retry_after_that_says_nothing_is_none(header):
    assert refusal(httpx.Response(503, headers={"Retry-After": header})).retry_after_s is None


def test_waits_double_with_jitter_up_to_the_longest(monkeypatch):
    monkeypatch.setattr("entrostat.wire.retry.LONGEST_WAIT_S", 30.0)
    backoff, down = Backoff(), ServerDown("u", "r")
    for longest in (0.5, 1, 2, 4, 8, 16, 30, 30):
        assert longest / 2 <= backoff.after(down) <= longest
    assert backoff.after(Refused(503, "busy", "m", retry_after_s=2.0)) == 2.0
    assert backoff.after(Refused(503, "busy", "m", retry_after_s=2000.0)) == 30.0
    assert backoff.after(Refused(401, "e", "m")) == 30.0
    backoff.reset()
    assert backoff.after(down) <= 0.5


def test_every_status_has_a_verdict():
    verdicts = {s: verdict_on(Refused(s, "e", "m")) for s in (400, 401, 403, 404, 413, 422, 426, 429, 500, 503)}
    assert [s for s, v in verdicts.items() if v is Verdict.RETRY] == [400, 429, 500, 503]
    assert [s for s, v in verdicts.items() if v is Verdict.SET_ASIDE] == [413, 422]


# --- push


def test_push_sends_oldest_first_and_leaves_nothing(server, client, spool, tmp_path):
    now = datetime.now(UTC)
    spool("a" * 32, 3, started=now)
    spool("b" * 32, 2, started=now - timedelta(hours=1))
    seen = []
    report = push(tmp_path, client, lambda p: seen.append((p.stream.path.name[0], p.num_sent, p.bytes_sent > 0)))
    assert seen == [("b", 1, True), ("b", 2, True), ("a", 1, True), ("a", 2, True), ("a", 3, True)]
    assert list(server.streams) == ["b" * 32, "a" * 32]
    assert (report.num_sent, report.bytes_sent) == (5, sum(len(b) for b in server.store.values()))
    assert list(tmp_path.iterdir()) == []


def test_push_may_be_repeated_after_a_lost_answer(server, client, spool, tmp_path):
    spool("a" * 32, 2)
    server.script.extend(["lost_ack", "lost_request", "404", "503"])
    report = push(tmp_path, client)
    assert (report.num_sent, report.num_duplicates, report.problems) == (2, 1, [])
    assert server.steps() == [0, 1]


def test_push_keeps_a_refused_batch_aside_and_goes_on(server, client, spool, tmp_path):
    spool("a" * 32, 3)
    server.script.extend(["ok", "422"])
    report = push(tmp_path, client)
    assert (report.num_sent, report.num_rejected) == (2, 1)
    assert server.seqs() == [0, 2]
    assert next(pending_streams(tmp_path)).num_rejected == 1
    assert push(tmp_path, client).num_sent == 0


def test_push_gives_up_on_a_server_that_is_away_and_loses_nothing(server, client, spool, tmp_path):
    spool("a" * 32, 3)
    spool("b" * 32, 3)
    server.stop()
    report = push(tmp_path, client, patience_s=0.3)
    assert report.num_sent == 0
    assert len(report.problems) == 1
    assert "entrostat up" in report.problems[0]
    assert sum(p.num_batches for p in pending_streams(tmp_path)) == 6


def test_push_stops_at_a_refused_token(server, client, spool, tmp_path):
    spool("a" * 32, 1)
    server.open_status = 401
    [problem] = push(tmp_path, client).problems
    assert "401" in problem


def test_push_says_which_stream_it_cannot_read_and_sends_the_others(server, client, spool, tmp_path):
    spool("a" * 32, 1)
    spool("b" * 32, 1)
    (tmp_path / "run" / ("a" * 32) / "open.json").unlink()
    report = push(tmp_path, client)
    assert report.num_sent == 1
    assert "open.json" in report.problems[0]


def test_push_passes_over_a_stream_that_another_push_sent_meanwhile(client, spool, tmp_path, monkeypatch):
    spool("a" * 32, 2)
    spool("b" * 32, 1)
    adopt = SpoolStream.adopt

    def too_late(path, restore=None):
        if path.name.startswith("a"):
            shutil.rmtree(path)
        return adopt(path, restore)

    monkeypatch.setattr(SpoolStream, "adopt", too_late)
    report = push(tmp_path, client)

    assert (report.num_sent, report.problems) == (1, [])


def test_push_of_no_directory_is_an_error_and_of_none_is_nothing(client, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="not a directory"):
        push(tmp_path / "file", client)
    assert push(tmp_path / "nowhere", client).num_sent == 0
