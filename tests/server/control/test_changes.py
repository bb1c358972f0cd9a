"""Switching on and off, proposals, stop and arm, over HTTP with the real server."""

import pytest

from entrostat.server.auth import add_token
from entrostat.wire.client import Client
from entrostat.wire.interventions import INTERVENTIONS

ALLOW = ["scope", "kl_cov", "clip_cov", "selective_kl", "forking_tokens", "learning_rate", "iac"]
ADVISE = {"mode": "advise", "allow": ALLOW, "bounds": {"scope.lam": [0.0, 0.5], "learning_rate.factor": [0.6, 1.0]}}
WHO = {"because": "the covariance's tail grows", "person": "anna"}


@pytest.fixture
def run(server):
    """A run that allows things, at step 7."""
    stream = server.open("r", permissions=ADVISE)
    server.post(stream, 0, {"step_metric": [{"step": 7, "name": "entropy_mean", "value": 1.0}]})
    return server


def put(server, name, run="r", **body):
    return server.http.put(f"/v1/runs/{run}/interventions/{name}", json=WHO | body)


def refusal(answer, status):
    assert answer.status_code == status, answer.text
    return answer.json()["message"]


def asked(server):
    return server.ask("select step, producer, message, detail from event where kind = 'asked' order by time")


def test_the_catalogue_is_the_one_of_the_wire(server):
    listed = server.http.get("/v1/interventions").json()

    assert [i["name"] for i in listed] == [i.name for i in INTERVENTIONS]
    scope = next(i for i in listed if i["name"] == "scope")
    assert scope["params"][0] | {"meaning": ""} == {
        "name": "q", "kind": "number", "meaning": "", "default": 0.05, "bounds": {"gt": 0.0, "le": 1.0},
        "choices": [], "is_optional": False,
    }  # fmt: skip


def test_what_is_switched_on_is_in_the_next_answer_to_the_trainer(run):
    answer = put(run, "scope", params={"lam": 0.2, "threshold": None}, until_step=20)

    assert answer.status_code == 200, answer.text
    wanted = answer.json()["interventions"]
    assert wanted == [
        {"name": "scope", "params": {"lam": 0.2}, "because": WHO["because"], "by": "person:anna",
         "selection": "batch", "until_step": 20}
    ]  # fmt: skip
    ack = run.post(f"{1:032x}", 1, {"step_metric": [{"step": 8, "name": "entropy_mean", "value": 1.0}]})
    assert ack.json()["desired"] == answer.json()
    assert run.http.get("/v1/runs/r/desired").json() == answer.json()


def test_each_change_is_an_event_with_who_what_before_and_after(run):
    put(run, "scope", params={"lam": 0.2})
    put(run, "scope", params={"lam": 0.3}, person="bo")
    run.http.request("DELETE", "/v1/runs/r/interventions/scope", json={"because": "enough", "person": "cy"})

    events = run.http.get("/v1/runs/r/events").json()["events"]
    details = [e["detail"] for e in events if e["kind"] == "asked"]
    assert [(d["action"], d["name"], d["by"], d["version"]) for d in details] == [
        ("switch_on", "scope", "person:anna", 1),
        ("switch_on", "scope", "person:bo", 2),
        ("switch_off", "scope", "person:cy", 3),
    ]
    assert [(d["before"] and d["before"]["params"], d["after"] and d["after"]["params"]) for d in details] == [
        (None, {"lam": 0.2}), ({"lam": 0.2}, {"lam": 0.3}), ({"lam": 0.3}, None),
    ]  # fmt: skip
    assert [row[:3] for row in asked(run)] == [
        [7, "server", "anna asked for scope: the covariance's tail grows"],
        [7, "server", "bo asked for scope: the covariance's tail grows"],
        [7, "server", "cy switched off scope: enough"],
    ]


def test_asking_for_the_same_twice_writes_once(run):
    first = put(run, "scope").json()

    assert put(run, "scope").json() == first
    assert len(asked(run)) == 1


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("scope", {"params": {"q": 1.5}}, "scope.q: Input should be less than or equal to 1"),
        ("scope", {"params": {"qq": 1}}, "scope.qq: Extra inputs are not permitted; its parameters are q, lam"),
        ("scope", {"params": {"lam": "much"}}, "scope.lam: Input should be a valid number"),
        ("scope", {"params": {"lam": 0.6}}, "scope.lam=0.6 is outside what the user of this run allows, 0 to 0.5"),
        ("learning_rate", {}, "learning_rate.factor=0.5 (its default) is outside what the user of this run allows"),
        ("iac", {"selection": "step"}, "forking_tokens, kl_cov, scope can"),
        ("scope", {"selection": "step", "params": {"threshold": 0.1}}, "scope.threshold: with selection=step"),
        ("scope", {"selection": "rank"}, "body.selection: Input should be 'batch' or 'step'"),
        ("scope", {"until_step": 7}, "until_step=7 has passed: the run is at step 7"),
        ("scope", {"because": ""}, "body.because: String should have at least 1 character"),
        ("scope", {"person": " "}, "person: say who wants it"),
        ("scope", {"mistyped": 1}, "body.mistyped: Extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_is_named_with_the_field(run, name, body, said):
    assert said in refusal(put(run, name, **body), 422)
    assert run.http.get("/v1/runs/r/desired").json()["version"] == 0
    assert asked(run) == []


def test_nan_and_infinity_are_out_of_bounds(run):
    for number in ("NaN", "Infinity", "-Infinity"):
        body = f'{{"because": "b", "person": "p", "params": {{"lam": {number}}}}}'
        answer = run.http.put(
            "/v1/runs/r/interventions/scope", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 422, number


def test_a_run_that_observes_says_how_to_attach(server):
    server.open("watched")

    message = refusal(put(server, "scope", run="watched"), 403)
    assert "this run observes only: attach with mode='advise' or mode='act'" in message


def test_what_the_run_does_not_allow_is_refused_with_what_it_does(run):
    assert "does not allow casp: it allows clip_cov, forking_tokens, iac" in refusal(put(run, "casp"), 403)


def test_a_resumed_session_allows_what_it_says_itself(run):
    run.open("r", stream=2, session=2, resume_step=7, permissions={"mode": "act", "allow": ["casp"]},
             started="2026-01-02T00:00:00Z")  # fmt: skip

    assert put(run, "casp").status_code == 200
    assert put(run, "scope").status_code == 403


@pytest.mark.parametrize("pair", [("kl_cov", "clip_cov"), ("clip_cov", "kl_cov")])
def test_two_that_exclude_each_other_are_refused_either_way_round(run, pair):
    first, second = pair
    put(run, first)

    message = refusal(put(run, second), 409)
    assert f"{second} cannot be combined with {first}, which is on: both take the tokens" in message


def test_a_version_that_was_overtaken_is_a_conflict(run):
    put(run, "scope")

    assert "at version 1 by now, not 0" in refusal(put(run, "iac", expected_version=0), 409)
    assert put(run, "iac", expected_version=1).json()["version"] == 2


def test_what_is_not_there_is_404(run):
    assert "no run 'nobody'" in refusal(put(run, "scope", run="nobody"), 404)
    assert "no intervention 'scoop': there are casp" in refusal(put(run, "scoop"), 404)
    gone = run.http.delete("/v1/runs/r/interventions/scope", params={"because": "b", "person": "p"})
    assert "scope is not on" in refusal(gone, 404)
    assert "no proposal" in refusal(
        run.http.post(f"/v1/runs/r/proposals/{5:032x}", json={"approve": True, "person": "p"}), 404
    )


def test_switching_off_needs_a_reason_in_the_body_or_the_query(run):
    put(run, "scope")
    assert "because: say why" in refusal(run.http.delete("/v1/runs/r/interventions/scope"), 422)

    answer = run.http.delete("/v1/runs/r/interventions/scope", params={"because": "enough", "person": "bo"})
    assert answer.json()["interventions"] == []


def test_stop_all_ends_everything_until_the_run_is_armed(run):
    put(run, "scope")
    put(run, "iac")

    stopped = run.http.post("/v1/runs/r/stop-all", json={"because": "rewards fall", "person": "anna"}).json()
    assert (stopped["interventions"], stopped["is_armed"], stopped["version"]) == ([], False, 3)
    assert "arm the run again" in refusal(put(run, "scope"), 409)

    armed = run.http.post("/v1/runs/r/arm", json={"because": "found it", "person": "anna"}).json()
    assert (armed["interventions"], armed["is_armed"]) == ([], True)
    assert put(run, "scope").status_code == 200
    last = [e["detail"] for e in run.http.get("/v1/runs/r/events").json()["events"] if e["kind"] == "asked"]
    assert [d["action"] for d in last] == ["switch_on", "switch_on", "stop_all", "arm", "switch_on"]
    assert [i["name"] for i in last[2]["before"]["interventions"]] == ["scope", "iac"]


def test_a_run_that_observes_can_be_stopped(server):
    server.open("watched")

    answer = server.http.post("/v1/runs/watched/stop-all", json={"because": "to be sure", "person": "anna"})
    assert answer.json()["is_armed"] is False


def test_the_tokens_name_goes_before_the_name_that_is_said(own_server, tmp_path):
    tokens = {who: add_token(tmp_path / "data" / "tokens.json", who, scopes) for who, scopes in (
        ("maria", ["control"]), ("machine", ["ingest"]), ("reader", ["read"]), ("boss", ["admin"]),
    )}  # fmt: skip
    server = own_server().start()

    def ask(who, method, path, **given):
        return server.http.request(method, path, headers={"Authorization": f"Bearer {tokens[who]}"}, **given)

    opening = {"run_id": "r", "session_id": f"{1:032x}", "started": "2026-01-01T00:00:00Z", "permissions": ADVISE}
    ask("machine", "PUT", f"/v1/streams/{1:032x}", json=opening)
    path, body = "/v1/runs/r/interventions/scope", {"because": "b", "person": "somebody else"}

    assert ask("reader", "PUT", path, json=body).status_code == 403
    assert ask("machine", "POST", "/v1/runs/r/stop-all", json=body).status_code == 403
    assert ask("maria", "PUT", path, json=body).json()["interventions"][0]["by"] == "person:maria"
    assert ask("maria", "DELETE", path, json={"because": "b"}).status_code == 200
    assert ask("maria", "GET", "/v1/runs/r/control").status_code == 403
    assert ask("reader", "GET", "/v1/runs/r/control").status_code == 200
    events = ask("reader", "GET", "/v1/runs/r/events").json()["events"]
    assert [(e["detail"]["by"], e["detail"].get("said_to_be")) for e in events if e["kind"] == "asked"] == [
        ("person:maria", "somebody else"), ("person:maria", None),
    ]  # fmt: skip


def test_the_client_does_all_of_it(run):
    with Client(run.url) as client:
        client.switch_on("r", "scope", "b", params={"lam": 0.3}, person="anna", selection="step", until_step=50)
        on = client.control("r")
        assert on["desired"]["interventions"][0] | {"because": ""} == {
            "name": "scope", "params": {"lam": 0.3}, "because": "", "by": "person:anna", "selection": "step",
            "until_step": 50,
        }  # fmt: skip
        assert client.switch_off("r", "scope", "b", person="anna").interventions == []
        assert client.stop_all("r", "b", person="anna").is_armed is False
        assert client.arm("r", "b", person="anna").is_armed is True
        assert client.effects("r", ["entropy_mean"]) == []
        assert {i["name"] for i in client.interventions()} == {i.name for i in INTERVENTIONS}
