"""Health, metrics, the OpenAPI document, one shape for every error."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from entrostat.server.app import build_app
from entrostat.server.run_metrics import MAX_RUNS
from entrostat.server.settings import Settings, sentence_of
from entrostat.storage.store import Store
from entrostat.wire.messages import ErrorBody
from entrostat.wire.tables import PROTOCOL


def metrics(server):
    text = server.http.get("/metrics").text
    return {s.name: s for f in text_string_to_metric_families(text) for s in f.samples}, text


def test_health_says_what_is_running(server):
    body = server.http.get("/healthz").json()

    assert body.pop("uptime_s") > 0
    assert body | {"version": ""} == {
        "status": "ok", "version": "", "protocol": PROTOCOL, "tokens_needed": False, "queue_bytes": 0, "restarts": 0,
        "last_restart": None, "problem": None,
    }  # fmt: skip


def test_a_server_that_could_take_a_batch_is_ready(server):
    answer = server.http.get("/v1/ready")

    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reason": None, "message": None})


def test_metrics_count_and_show_the_live_runs(server):
    stream = server.open("live")
    before, _ = metrics(server)
    for _ in range(2):
        server.post(stream, 0, {"step_metric": [{"step": 4, "name": "entropy_mean", "value": 0.25}]})
    server.post(stream, 1, {"bad": []})
    after, text = metrics(server)

    def grown(name):
        return after[name].value - before[name].value

    assert (grown("entrostat_batches_total"), grown("entrostat_duplicate_batches_total")) == (1, 1)
    assert grown("entrostat_rows_total") == 1
    assert 'entrostat_refused_requests_total{code="malformed_batch"}' in text
    assert 'entrostat_run_entropy_mean{run="live"} 0.25' in text
    assert 'entrostat_run_last_step{run="live"} 4.0' in text


def test_a_run_that_ended_takes_its_series_with_it(server):
    stream = server.open("over")
    server.post(stream, 0, {"step_metric": [{"step": 4, "name": "entropy_mean", "value": 0.25}]})
    server.post(stream, 1, {"event": [{"time": "2026-01-01T00:00:00", "kind": "run_ended", "message": ""}]})

    assert 'run="over"' not in metrics(server)[1]


def test_what_probes_lost_and_when_a_run_was_heard_are_for_prometheus(server):
    stream = server.open("lossy")
    detail = '{"reason": "queue_full", "items": 2, "steps": 2, "token_rows": 30, "bytes": 9}'
    dropped = {"time": "2026-01-01T00:00:00", "kind": "dropped", "message": "Dropped.", "detail": detail}
    server.post(stream, 0, {"event": [dropped, dropped, dropped | {"kind": "warning"}]})

    heard, text = metrics(server)
    assert 'entrostat_run_dropped_steps_total{reason="queue_full",run="lossy"} 4.0' in text
    assert 'entrostat_run_dropped_token_rows_total{reason="queue_full",run="lossy"} 60.0' in text
    assert 'entrostat_run_dropped_steps_total{reason="spool_full",run="lossy"} 0.0' in text
    assert 'entrostat_run_warnings_total{run="lossy"} 1.0' in text
    assert heard["entrostat_run_last_batch_timestamp_seconds"].value == pytest.approx(time.time(), abs=600)


def test_series_for_prometheus_are_bounded(server):
    for k in range(MAX_RUNS + 3):
        server.open(f"run{k}", k + 1, session=k + 1)

    for k in range(MAX_RUNS + 3):
        server.post(f"{k + 1:032x}", 0, {"step_metric": [{"step": 1, "name": "entropy_mean", "value": 0.25}]})
    assert metrics(server)[1].count("entrostat_run_entropy_mean{") == MAX_RUNS


def test_the_openapi_document_describes_every_endpoint():
    with Store("duckdb::memory:") as store:
        document = build_app(Settings(data="/nonexistent"), store).openapi()

    paths = document["paths"]
    assert {"/v1/streams/{stream_id}/batches/{seq}", "/v1/sql", "/v1/series", "/healthz", "/v1/ready"} <= set(paths)
    assert "/metrics" in paths
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
            assert operation["tags"], (method, path)
    batch = paths["/v1/streams/{stream_id}/batches/{seq}"]["post"]
    assert "step_metric" in batch["requestBody"]["content"]["application/json"]["example"]
    assert {"404", "413", "422", "426", "503"} <= set(batch["responses"])


def test_the_openapi_page_is_served(server):
    assert server.http.get("/openapi.json").json()["info"]["title"] == "entrostat"
    assert server.http.get("/docs").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("GET", "/v1/sql", None, 405),
        ("GET", "/v1/runs/none", None, 404),
        ("GET", "/v1/runs/a%20b", None, 422),
        ("GET", "/v1/runs?limit=x", None, 422),
        ("GET", "/v1/series?run=a", None, 422),
        ("GET", "/v1/series?run=a&name=b&points=0", None, 422),
        ("POST", "/v1/sql", b"{", 422),
        ("POST", "/v1/sql", b'{"sql": 1}', 422),
        ("POST", "/v1/sql", b'{"sql": "select 1", "format": "xml"}', 422),
        ("PUT", "/v1/streams/short", b"{}", 422),
        ("POST", f"/v1/streams/{1:032x}/batches/-1", b"{}", 422),
        ("POST", f"/v1/streams/{1:032x}/batches/99999999999", b"{}", 422),
    ],
)
def test_every_error_has_the_one_shape(server, method, path, body, status):
    answer = server.http.request(method, path, content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == status
    error = ErrorBody.model_validate_json(answer.content)
    assert error.message


def test_settings_come_from_the_environment_and_what_is_given_wins():
    settings = Settings.from_environment(
        {"ENTROSTAT_SERVER_PORT": "9", "ENTROSTAT_SERVER_QUERY_TIMEOUT_S": "1.5"}, port=7, host=None
    )

    assert (settings.port, settings.query_timeout_s, settings.host) == (7, 1.5, "127.0.0.1")
    with pytest.raises(ValueError, match="ENTROSTAT_SERVER_PORT"):
        Settings.from_environment({"ENTROSTAT_SERVER_PORT": "many"})
    assert "loopback" in sentence_of("host")


def test_a_taken_port_is_said_in_a_line(server, own_server):
    second = own_server()
    second.port = server.port
    with pytest.raises(AssertionError, match="cannot listen on"):
        second.start()

    assert second.process.returncode == 2
