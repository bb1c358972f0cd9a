"""Who changed what: written with the change, told by the token's name, and there when the run is not any more."""

import json

import pytest

from entrostat.server.auth import add_token

RULE = {"name": "guard", "when": {"signal": "entropy_mean", "below": 0.1, "for_steps": 2}}
MAY = {"mode": "advise", "allow": ["kl_cov"]}


@pytest.fixture
def guarded(own_server, tmp_path):
    path = tmp_path / "data" / "tokens.json"
    tokens = {name: add_token(path, name, scopes) for name, scopes in
              (("trainer", ["ingest"]), ("anna", ["read", "control"]), ("root", ["admin"]))}  # fmt: skip
    server = own_server().start()

    def send(name, method, path, body=None):
        headers = {"Authorization": f"Bearer {tokens[name]}"}
        return server.http.request(method, path, json=body, headers=headers)

    opening = {"run_id": "r", "session_id": f"{1:032x}", "started": "2026-01-01T00:00:00Z", "permissions": MAY}
    assert send("trainer", "PUT", f"/v1/streams/{1:032x}", opening).status_code == 200
    return server, send, tokens


def audit(send):
    sql = "select action, who, said, run, name, detail from audit order by time"
    return [
        (*row[:5], json.loads(row[5]) if row[5] else None)
        for row in send("root", "POST", "/v1/sql", {"sql": sql}).json()["rows"]
    ]


def test_every_change_by_hand_leaves_who_what_and_when_and_outlives_its_run(guarded):
    server, send, tokens = guarded
    because = {"because": "the tail grows", "person": "<b>bob</b>"}
    asked = [
        ("anna", "PUT", "/v1/runs/r/interventions/kl_cov", {**because, "params": {"k": 0.01}}),
        ("anna", "DELETE", "/v1/runs/r/interventions/kl_cov", because),
        ("anna", "POST", "/v1/runs/r/stop-all", because),
        ("anna", "POST", "/v1/runs/r/arm", because),
        ("anna", "PATCH", "/v1/runs/r", {"tags": {"a": "b"}}),
        ("anna", "PUT", "/v1/rules/guard", RULE),
        ("anna", "DELETE", "/v1/rules/guard", None),
        ("anna", "DELETE", "/v1/runs/r", None),  # may not
        ("root", "DELETE", "/v1/runs/r", None),
    ]
    statuses = [send(*one).status_code for one in asked]
    assert statuses == [200, 200, 200, 200, 200, 200, 204, 403, 204]
    server.stop()
    server.start()  # as a file of the same place is opened again

    lines = [line for line in audit(send) if line[0] != "token_used"]
    assert [line[:5] for line in lines] == [
        ("switch_on", "anna", "<b>bob</b>", "r", "kl_cov"),
        ("switch_off", "anna", "<b>bob</b>", "r", "kl_cov"),
        ("stop_all", "anna", "<b>bob</b>", "r", None),
        ("arm", "anna", "<b>bob</b>", "r", None),
        ("run_changed", "anna", None, "r", None),
        ("rule_put", "anna", None, None, "guard"),
        ("rule_removed", "anna", None, None, "guard"),
        ("run_deleted", "root", None, "r", None),
    ]
    assert lines[0][5]["because"] == "the tail grows"
    assert lines[0][5]["after"]["params"] == {"k": 0.01}
    assert lines[4][5] == {"tags": {"a": "b"}}
    assert lines[5][5]["rule"]["when"]["signal"] == "entropy_mean"
    addresses = send("root", "POST", "/v1/sql", {"sql": "select distinct address from audit"}).json()["rows"]
    assert addresses == [["127.0.0.1"]]
    everything = send("root", "POST", "/v1/sql", {"sql": "select * from audit"}).text
    assert not any(token in everything for token in tokens.values())


def test_the_first_use_of_each_token_is_written_once(guarded):
    _, send, _ = guarded
    for _ in range(3):
        send("anna", "GET", "/v1/runs")
    used = [(line[1], line[4], line[5]) for line in audit(send) if line[0] == "token_used"]

    assert used == [
        ("trainer", "trainer", {"scopes": ["ingest"]}),
        ("anna", "anna", {"scopes": ["control", "read"]}),
        ("root", "root", {"scopes": ["admin"]}),
    ]


def test_what_was_refused_and_what_changed_nothing_leaves_no_line(server):
    server.open()
    before = server.ask("select count(*) from audit")
    assert server.http.delete("/v1/runs/none").status_code == 404
    assert server.http.delete("/v1/rules/none").status_code == 404
    assert server.http.post("/v1/runs/r/arm", json={"because": "x", "person": "p"}).status_code == 200  # armed already

    assert server.ask("select count(*) from audit") == before


def test_without_tokens_the_name_is_what_the_request_says(server):
    server.open()
    server.http.post("/v1/runs/r/stop-all", json={"because": "x", "person": "anna"})

    assert server.ask("select who, said, action from audit order by time desc limit 1") == [[None, "anna", "stop_all"]]


def test_no_token_is_ever_written_to_the_servers_log(guarded):
    server, send, tokens = guarded
    send("anna", "GET", "/v1/runs")
    for wrong in ("es_a-wrong-one", tokens["anna"] + "x"):
        server.http.get(f"/v1/runs?token={wrong}", headers={"Authorization": f"Bearer {wrong}"})
    server.http.post("/v1/sql", content=tokens["anna"], headers={"Authorization": f"Bearer {tokens['anna']}"})
    server.kill()
    written = server.process.stdout.read() + server.log

    assert not any(secret in written for secret in (*tokens.values(), "es_a-wrong-one"))


def test_a_token_says_who_it_is(guarded):
    _, send, _ = guarded

    assert send("anna", "GET", "/v1/whoami").json() == {"name": "anna", "scopes": ["control", "read"]}
