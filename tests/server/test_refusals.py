"""What was refused and what persons did is in the log, once, with who and why, and without a token or a body."""

import pytest
from support.patience import until

from entrostat.server.auth import add_token
from entrostat.wire.logs import BURST

JSON = {"ENTROSTAT_SERVER_LOG_FORMAT": "json"}
SECRET = "a-secret-of-the-body"


@pytest.fixture
def guarded(own_server, tmp_path):
    """A server with tokens; its client may do everything, ``tokens["reader"]`` may read."""
    path = tmp_path / "tokens.json"
    tokens = {name: add_token(path, name, [scope]) for name, scope in (("anna", "admin"), ("reader", "read"))}
    server = own_server("--tokens", str(path), **JSON)
    server.http.headers["Authorization"] = f"Bearer {tokens['anna']}"
    server.start()
    return server, tokens


def test_what_is_refused_and_what_is_done_is_in_the_log(guarded):
    server, tokens = guarded
    stream = server.open("mine")
    wrong = "es_" + "wrong" * 8
    server.http.get("/v1/runs", headers={"Authorization": f"Bearer {wrong}"})
    server.http.delete("/v1/runs/mine", headers={"Authorization": f"Bearer {tokens['reader']}"})
    server.post(stream, 0, {SECRET: [{"step": 1}]})
    server.http.post("/v1/sql", json={"sql": f"select '{SECRET}' from nowhere"})
    server.http.patch("/v1/runs/mine", json={"notes": SECRET})
    server.http.post("/v1/runs/mine/stop-all", json={"because": "it collapses"})
    until(lambda: len(server.events("control")) == 2, "the changes are not in the log")

    refused = {line["code"]: line for line in server.events("auth_refused")}
    assert set(refused) == {"unknown_token", "missing_scope"}
    assert (refused["missing_scope"]["by"], refused["missing_scope"]["path"]) == ("reader", "/v1/runs/mine")
    batch = server.events("batch_refused")[0]
    assert (batch["code"], batch["run"], batch["stream"]) == ("malformed_batch", "mine", stream)
    assert server.events("request_refused")[0]["path"] == "/v1/sql"
    assert [(line["by"], line["action"]) for line in server.events("control")] == [
        ("anna", "PATCH"), ("person:anna", "stop_all"),
    ]  # fmt: skip
    assert server.events("stream_opened")[0]["run"] == "mine"
    for secret in (*tokens.values(), wrong, "nowhere"):
        assert secret not in server.log


def test_a_broken_probe_writes_few_lines_and_every_refusal_is_counted(guarded):
    server, _ = guarded
    stream = server.open("mine")
    for seq in range(5 * BURST):
        server.post(stream, seq, {"bad": []})

    page = server.http.get("/metrics").text
    assert f'entrostat_refused_requests_total{{code="malformed_batch"}} {5 * BURST}.0' in page
    assert BURST <= len(server.events("batch_refused")) <= 3 * BURST


def test_a_query_that_was_stopped_is_in_the_log_and_counted(own_server):
    server = own_server(ENTROSTAT_SERVER_QUERY_TIMEOUT_S="0.2", **JSON).start()
    answer = server.http.post("/v1/sql", json={"sql": "select count(*) from range(1000000) a, range(1000000) b"})

    page = server.http.get("/metrics").text
    assert answer.status_code == 408
    assert server.events("query_stopped")[0]["duration_s"] == 0.2
    assert 'entrostat_refused_requests_total{code="query_timeout"} 1.0' in page
    assert "entrostat_query_seconds_count 1.0" in page
    assert "entrostat_queries_running 0.0" in page
    assert "entrostat_query_slots 2.0" in page
    assert "process_resident_memory_bytes" in page
