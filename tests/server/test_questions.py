"""SQL, curves, histograms, runs and the vocabulary over HTTP, in the shapes of docs/http.md."""

import math
import re
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from support.attacks import HEAVY
from support.patience import PATIENCE_S

from entrostat.wire.client import Client
from entrostat.wire.signals import SIGNALS


@pytest.fixture
def run(server):
    stream = server.open(trainer="a loop", tags={"model": "small"}, config={"lr": 1e-3}, host="here")
    server.post(
        stream,
        0,
        {
            "step_metric": [{"step": s, "name": "entropy_mean", "value": 1 / (s + 1)} for s in range(100)],
            "histogram": [{"step": 1, "name": "entropy", "bin": 305, "count": 2, "total": 200.0}],
            "event": [{"step": 1, "time": "2026-01-01T00:00:00", "kind": "note", "message": "m", "detail": '{"a":1}'}],
        },
    )
    return "r"


def test_rows_as_json(server, run):
    body = server.http.post("/v1/sql", json={"sql": "select step, entropy_mean from step", "max_rows": 3}).json()

    assert body["columns"] == [{"name": "step", "type": "int32"}, {"name": "entropy_mean", "type": "double"}]
    assert len(body["rows"]) == 3
    assert body["truncated"] is True
    assert body["elapsed_ms"] > 0


def test_rows_as_arrow_through_our_own_client(server, run):
    with Client(server.url) as client:
        table, is_truncated = client.sql("select step from step order by step", max_rows=10)
        whole, is_whole_truncated = client.sql("select * from step")

    assert table["step"].to_pylist() == list(range(10))
    assert (is_truncated, is_whole_truncated) == (True, False)
    assert whole.num_rows == 100
    assert isinstance(whole, pa.Table)


def test_what_json_cannot_say_is_null(server, run):
    assert server.ask(
        "select 'nan'::double, 'inf'::double, null, timestamp '2026-01-01 00:00:00', 1::decimal(9,2)"
    ) == [[None, None, None, "2026-01-01T00:00:00", "1.00"]]


@pytest.mark.parametrize(
    ("sql", "status", "code"),
    [
        ("drop view run", 403, "query_forbidden"),
        ("from raw.run", 403, "query_forbidden"),
        ("select nothing from run", 400, "query_error"),
        ("select from where", 400, "query_error"),
    ],
)
def test_a_refused_statement_says_why(server, sql, status, code):
    answer = server.http.post("/v1/sql", json={"sql": sql})

    assert (answer.status_code, answer.json()["error"]) == (status, code)


def test_a_statement_that_takes_too_long_ends_and_ingest_goes_on_meanwhile(own_server):
    server = own_server(ENTROSTAT_SERVER_QUERY_TIMEOUT_S="1").start()
    answers = []
    endless = {"sql": "select count(*) from range(10000000) a, range(10000000) b"}
    asking = threading.Thread(target=lambda: answers.append(server.http.post("/v1/sql", json=endless)))
    asking.start()
    stream = server.open()
    acks = [server.post(stream, k, {"step_metric": [{"step": k, "name": "n", "value": 1}]}) for k in range(5)]
    asking.join()

    assert [a.status_code for a in acks] == [200] * 5
    assert (answers[0].status_code, answers[0].json()["error"]) == (408, "query_timeout")


CELL = (
    "with recursive s as (select 'aaaaaaaa' as t union all select t || t from s where length(t) < {}) "
    "select length(t) as n, t as cell from s order by length(t) {}"
)


@pytest.mark.parametrize(
    ("sql", "num_rows"),
    [("from range(1001)", 1000), ("from range(1000)", None), (CELL.format("2e6", ""), 16), ("select null, true", None)],
)
@pytest.mark.parametrize("form", ["json", "arrow"])
def test_what_is_cut_says_so_in_both_forms(narrow_server, sql, num_rows, form):
    answer = narrow_server.http.post("/v1/sql", json={"sql": sql, "format": form, "max_rows": 10**9})
    assert answer.status_code == 200, answer.text
    if form == "json":
        found, is_cut = len(answer.json()["rows"]), answer.json()["truncated"]
    else:
        found = pa.ipc.open_stream(answer.content).read_all().num_rows
        is_cut = answer.headers["X-Truncated"] == "true"

    assert is_cut == (num_rows is not None)
    assert found == (num_rows or found)
    assert len(answer.content) < 4 * 2**20


def test_the_command_line_says_who_cut_and_what_to_do(narrow_server):
    def said(*arguments):
        command = [sys.executable, "-P", "-m", "entrostat.cli.main", "sql", "--url", narrow_server.url, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stderr

    assert "cut after 5 rows; --max-rows gives more" in said("--max-rows", "5", "from range(10)")
    assert "cut after 1000 rows; the limit of the server" in said("--max-rows", "100000", "from range(100000)")
    assert said("from range(10)") == ""


def test_a_cell_of_hundreds_of_megabytes_does_not_take_the_servers_memory(narrow_server):
    stream = narrow_server.open("cells", 77)
    answer = narrow_server.http.post("/v1/sql", json={"sql": CELL.format("1.2e8", "desc limit 1")})
    peak_mb = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{narrow_server.process.pid}/status").read_text())[1]) / 1024

    assert answer.json()["error"] in ("query_error", "query_timeout"), answer.text
    assert peak_mb < 256 * 2 + 512 + 512  # the engine's limit, what may come on top of it, Python and Arrow
    assert narrow_server.post(stream, 0, {"step_metric": [{"step": 1, "name": "n", "value": 1}]}).status_code == 200


@pytest.mark.parametrize("what", ["pairs", "doubling", "a list of everything", "a sort", "strings of a product"])
def test_heavy_questions_end_and_batches_are_taken_meanwhile(narrow_server, what):
    stream = narrow_server.open(what.replace(" ", "-"), 100 + len(what))
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(narrow_server.http.post("/v1/sql", json={"sql": HEAVY[what]}))
    )
    asking.start()
    acks = [narrow_server.post(stream, k, {"step_metric": [{"step": k, "name": "n", "value": 1}]}) for k in range(5)]
    asking.join()

    assert [a.status_code for a in acks] == [200] * 5
    assert answers[0].status_code in (400, 408)
    assert narrow_server.http.get("/healthz").json()["status"] == "ok"
    assert narrow_server.ask("select 1") == [[1]]


def test_a_curve_is_thinned_and_hides_nothing(server, run):
    (one,) = server.http.get("/v1/series", params={"run": run, "name": "entropy_mean", "points": 10}).json()["series"]

    assert set(one) == {"run", "name", "step", "time", "value", "low", "high", "se", "bucket_steps"}
    assert one["bucket_steps"] == 10
    assert one["step"] == list(range(0, 100, 10))
    assert one["high"] == pytest.approx([1 / (s + 1) for s in range(0, 100, 10)])
    assert one["low"] == pytest.approx([1 / (s + 10) for s in range(0, 100, 10)])
    assert one["se"] is None


def test_several_runs_and_names_come_in_one_answer(server, run):
    server.post(server.open("other", 2), 0, {"step_metric": [{"step": 0, "name": "entropy_mean", "value": 1}]})
    answer = server.http.get("/v1/series", params={"run": ["r", "other"], "name": ["entropy_mean", "d_entropy"]}).json()

    assert [(s["run"], s["name"], len(s["step"])) for s in answer["series"]] == [
        ("r", "entropy_mean", 100),
        ("r", "d_entropy", 99),
        ("other", "entropy_mean", 1),
        ("other", "d_entropy", 0),
    ]


def test_a_histogram_has_its_edges_and_no_infinity(server, run):
    body = server.http.get(f"/v1/runs/{run}/histogram", params={"name": "entropy"}).json()

    assert (body["unit"], body["step"], body["bin"], body["count"]) == ("nats", [1], [305], [[2]])
    assert (body["low"], body["high"]) == ([64.0], [None])


def test_runs_are_listed_and_searched(server, run):
    server.open("other", 2)
    runs = server.http.get("/v1/runs").json()["runs"]

    assert [r["run"] for r in runs] == ["other", "r"]
    assert runs[1] | {"created": 0, "last_seen": 0} == {
        "run": "r", "created": 0, "last_seen": 0, "status": "live", "trainer": "a loop", "tags": {"model": "small"},
        "notes": "", "host": "here", "git_commit": None, "world_size": 1, "last_step": 99,
        "latest": {"entropy_mean": 0.01}, "tokens_removed": None,
    }  # fmt: skip
    assert [r["run"] for r in server.http.get("/v1/runs", params={"search": "Small"}).json()["runs"]] == ["r"]
    assert len(server.http.get("/v1/runs", params={"limit": 1}).json()["runs"]) == 1


def test_a_run_shows_what_it_was_started_with(server, run):
    body = server.http.get("/v1/runs/r").json()

    assert body["config"] == {"lr": 1e-3}
    shape = ["entropy_p10", "entropy_p50", "entropy_p90", "entropy_top20"]  # it has sent a histogram
    assert body["names"] == ["d_entropy", "entropy_mean", *shape]
    assert body["baseline"] is None
    assert body["streams"][0]["process_rank"] == 0
    assert server.http.get("/v1/runs/r/desired").json()["version"] == 0
    assert server.http.get("/v1/runs/r/events").json()["events"] == [
        {"step": 1, "time": "2026-01-01T00:00:00+00:00", "kind": "note", "message": "m", "detail": {"a": 1}}
    ]


def test_a_run_can_be_tagged_annotated_and_deleted(server, run):
    body = server.http.patch("/v1/runs/r", json={"tags": {"a": "b"}, "notes": "good"}).json()

    assert (body["tags"], body["notes"]) == ({"a": "b"}, "good")
    assert server.http.patch("/v1/runs/r", json={"note": "typo"}).status_code == 422
    assert server.http.delete("/v1/runs/r").status_code == 204
    for path in ("/v1/runs/r", "/v1/runs/r/events", "/v1/runs/r/desired", "/v1/runs/r/histogram"):
        assert server.http.get(path).json()["error"] == "not_found"
    assert server.http.get("/v1/series", params={"run": "r", "name": "x"}).status_code == 404
    assert server.http.delete("/v1/runs/r").status_code == 404


def test_the_schema_and_the_vocabulary_say_what_there_is(server):
    views = server.http.get("/v1/schema").json()["views"]
    signals = server.http.get("/v1/signals").json()["signals"]

    assert {"run", "step", "step_metric", "token", "sequence", "histogram", "event"} <= {v["name"] for v in views}
    assert all(c["comment"] and c["type"] for v in views for c in v["columns"])
    assert [s["name"] for s in signals] == [s.name for s in SIGNALS]


def test_a_value_that_is_not_a_number_is_null_in_a_curve(server):
    stream = server.open()
    body = b'{"step_metric": [{"step": 1, "name": "x", "value": NaN}, {"step": 2, "name": "x", "value": 1}]}'
    server.http.post(f"/v1/streams/{stream}/batches/0", content=body, headers={"Content-Type": "application/json"})
    (one,) = server.http.get("/v1/series", params={"run": "r", "name": "x"}).json()["series"]

    assert one["value"] == [None, 1.0]
    assert not any(isinstance(v, float) and math.isnan(v) for v in one["high"])


def test_the_analysis_of_a_run_says_what_it_can_and_why_not_the_rest(server, run):
    found = server.http.get("/v1/runs/r/analysis", params={"floor": 0.005}).json()

    assert (found["entropy"], found["reward"], found["num_steps"]) == ("entropy_mean", "reward_mean", 100)
    assert found["stage"] == {
        "stage": "plateau",
        "plateau_from": found["stage"]["plateau_from"],
        "entropy_range": pytest.approx(0.99),
        "refused": None,
    }
    assert "0 points" in found["entropy_law"]["refused"]
    assert 100 < found["entropy_floor_forecast"]["step"] < 250
    with Client(server.url) as client:
        assert client.analysis("r", floor=0.005) == found


@pytest.mark.parametrize(
    ("address", "status"),
    [("nope/analysis", 404), ("r/analysis?floor=0", 422), ("r/analysis?floor=inf", 422), ("r/analysis?reward=x", 200)],
)
def test_an_analysis_of_nothing_or_to_no_floor_is_an_error(server, run, address, status):
    assert server.http.get(f"/v1/runs/{address}").status_code == status
