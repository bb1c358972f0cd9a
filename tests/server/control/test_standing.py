"""What is in force is what the trainer said last, never what was asked for."""

import json

import pytest

BEGAN = "2026-01-01T00:00:{:02d}"
SCOPE = {"name": "scope", "params": {"lam": 0.1}, "by": "person:anna", "because": "b", "selection": "batch"}
ALLOW = {"mode": "advise", "allow": ["scope", "kl_cov", "iac"]}


def event(step, kind, second=0, **detail):
    return {"step": step, "time": BEGAN.format(second), "kind": f"intervention_{kind}", "message": "m",
            "detail": json.dumps(SCOPE | detail)}  # fmt: skip


@pytest.fixture
def run(server):
    server.stream = server.open("r", permissions=ALLOW)
    server.seq = 0

    def say(*events, **tables):
        given = {"event": list(events), **tables} if events else tables
        answer = server.post(server.stream, server.seq, given)
        assert answer.status_code == 200, answer.text
        server.seq += 1

    server.say = say
    return server


def control(server):
    answer = server.http.get("/v1/runs/r/control")
    assert answer.status_code == 200, answer.text
    return answer.json()


def in_force(server):
    return [(i["name"], i["params"], i["since_step"]) for i in control(server)["in_force"]]


def test_asked_for_is_not_in_force(run):
    run.http.put("/v1/runs/r/interventions/scope", json={"because": "b", "person": "anna"})

    seen = control(run)
    assert [i["name"] for i in seen["desired"]["interventions"]] == ["scope"]
    assert (seen["in_force"], seen["refused"], seen["is_live"]) == ([], [], True)
    assert seen["permissions"]["allow"] == ALLOW["allow"]


def test_the_trainers_words_are_followed(run):
    run.say(event(3, "on", 1, version=1, in_force={"lam": 0.1, "q": 0.05}))
    assert in_force(run) == [("scope", {"lam": 0.1}, 3)]
    assert control(run)["in_force"][0]["in_force"] == {"lam": 0.1, "q": 0.05}
    run.say(event(5, "changed", 2, params={"lam": 0.2}, version=2))
    assert in_force(run) == [("scope", {"lam": 0.2}, 5)]
    run.say(event(9, "off", 3, why="enough"))
    assert in_force(run) == []


def test_what_raised_in_the_trainer_is_not_in_force_and_says_why(run):
    run.http.put("/v1/runs/r/interventions/scope", json={"because": "b", "person": "anna", "params": {"lam": 0.1}})
    run.say(event(3, "on", 1), event(4, "refused", 2, reason="it raised ValueError"))

    assert in_force(run) == []
    assert control(run)["refused"] == [{"name": "scope", "reason": "it raised ValueError", "step": 4}]
    run.http.put("/v1/runs/r/interventions/scope", json={"because": "b", "person": "anna", "params": {"lam": 0.2}})
    assert control(run)["refused"] == []  # another wish, not answered yet


def test_what_a_resumed_session_superseded_is_not_in_force(run):
    run.say(event(3, "on", 1), event(8, "on", 2, name="iac"), step_metric=[{"step": 8, "name": "x", "value": 1.0}])
    assert [i[0] for i in in_force(run)] == ["scope", "iac"]

    run.open("r", stream=2, session=2, resume_step=5, started="2026-01-02T00:00:00Z", permissions=ALLOW)
    assert [i[0] for i in in_force(run)] == ["scope"]


def effects(server, **params):
    answer = server.http.get("/v1/runs/r/effects", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["effects"]


def test_effects_are_means_before_while_and_after(run):
    values = {step: float(step % 2) + (10.0 if 10 <= step < 20 else 0.0) for step in range(30)}
    rows = [{"step": s, "name": "entropy_mean", "value": v} for s, v in values.items()]
    run.say(event(10, "on", 1), event(15, "changed", 2, params={"lam": 0.2}), event(20, "off", 3, why="enough"),
            event(21, "on", 4, name="iac", because="c"), step_metric=rows)  # fmt: skip

    first, second = effects(run, signals="entropy_mean,reward_mean", window=4)
    assert (first["name"], first["start"], first["end"], first["why_off"]) == ("scope", 10, 20, "enough")
    assert first["changes"] == [{"step": 15, "params": {"lam": 0.2}}]
    assert (first["also_on"], second["also_on"]) == (["iac"], ["scope"])
    entropy, reward = first["signals"]
    half = 0.5773502691896257 / 2  # standard deviation of 0, 1, 0, 1 over the root of 4
    assert entropy["before"] == pytest.approx({"mean": 0.5, "se": half, "num_steps": 4})
    assert entropy["on"]["mean"] == 10.5
    assert entropy["on"]["num_steps"] == 10
    assert entropy["after"] == pytest.approx({"mean": 0.5, "se": half, "num_steps": 4})
    assert entropy["on_minus_before"]["value"] == 10.0
    assert entropy["after_minus_before"] == pytest.approx({"value": 0.0, "se": half * 2**0.5})
    assert reward["before"] == {"mean": None, "se": None, "num_steps": 0}
    assert reward["on_minus_before"] == {"value": None, "se": None}
    still_on = second["signals"][0]
    assert (second["end"], still_on["on"]["num_steps"], still_on["after"]["num_steps"]) == (None, 9, 0)


def test_effects_are_asked_for_by_name_or_by_default(run):
    run.say(event(1, "on", 1), step_metric=[{"step": 1, "name": "trainer/loss", "value": 2.0}])

    assert [s["signal"] for s in effects(run)[0]["signals"]] == [
        "entropy_mean", "reward_mean", "pass_at_1", "d_collapse",
    ]  # fmt: skip
    assert effects(run, signals=["trainer/loss"])[0]["signals"][0]["on"]["mean"] == 2.0
    too_many = run.http.get("/v1/runs/r/effects", params={"signals": ",".join(f"s{k}" for k in range(21))})
    assert (too_many.status_code, "at most 20" in too_many.json()["message"]) == (422, True)


def test_a_run_that_is_not_there_is_404(server):
    assert server.http.get("/v1/runs/nobody/control").status_code == 404
    assert server.http.get("/v1/runs/nobody/effects").status_code == 404
