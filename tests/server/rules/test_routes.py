"""Rules over HTTP, on the real server: put, checked, replayed, and alive after a kill -9."""

import json
import time

import pytest
from support.patience import PATIENCE_S

from entrostat.wire.client import Client
from entrostat.wire.errors import Refused
from entrostat.wire.rules.pack import pack_text

GUARD = {
    "name": "guard",
    "when": {"signal": "entropy_mean", "below": 0.2, "for_steps": 3},
    "do": {"intervention": "scope", "params": {"lam": 0.1}},
    "until": {"signal": "entropy_mean", "above": 0.4, "for_steps": 2},
    "mode": "act",
}
ACT = {"mode": "act", "allow": ["scope"]}
FALL = [0.5, 0.5, 0.1, 0.1, 0.1, 0.1, 0.5, 0.5]


@pytest.fixture
def client(server):
    """Of the server that all tests share: no rule before and none after, or other tests' runs would be told."""
    with Client(server.url) as made:
        for rule in made.rules():
            made.delete_rule(rule["name"])
        yield made
        for rule in made.rules():
            made.delete_rule(rule["name"])


def send(server, stream, values, first=0):
    """Each step a batch; returns the last acknowledgement."""
    for step, value in enumerate(values, first):
        answer = server.post(stream, step, {"step_metric": [{"step": step, "name": "entropy_mean", "value": value}]})
        assert answer.status_code == 200, answer.text
    return answer.json()


def eventually(look, wanted, patience_s=PATIENCE_S):
    """``look()`` once it is ``wanted``, or what it was last."""
    deadline = time.monotonic() + patience_s
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def events(server, run="r"):
    found = server.http.get(f"/v1/runs/{run}/events").json()["events"]
    return [(e["step"], e["kind"]) for e in found if e["kind"].startswith("rule_")]


def test_a_rule_is_put_listed_and_removed(client):
    put = client.put_rule(GUARD)
    assert (put["name"], put["version"] >= 1, put["rule"]) == ("guard", True, GUARD)
    assert client.put_rule(GUARD)["version"] == put["version"]
    changed = client.put_rule(GUARD | {"mode": "advise"})
    assert changed["version"] == put["version"] + 1
    assert client.rules() == [changed]
    client.delete_rule("guard")

    assert client.rules() == []
    with pytest.raises(Refused, match="no rule 'guard'"):
        client.delete_rule("guard")


def test_a_wrong_rule_is_refused_with_its_field(client):
    with pytest.raises(Refused, match=r"422 .*guard: when\.signal: unknown signal 'entropy_men'; did you mean entropy"):
        client.put_rule(GUARD | {"when": {"signal": "entropy_men", "below": 1}})
    with pytest.raises(Refused, match=r"guard: sql: .*no_such"):
        client.put_rule(GUARD | {"when": {"sql": "select no_such from step"}})
    with pytest.raises(Refused, match="guard: sql: only SELECT"):
        client.put_rule(GUARD | {"when": {"sql": "drop table step"}})
    with pytest.raises(Refused, match="use one name"):
        client.send("PUT", "/v1/rules/other", GUARD)
    assert client.rules() == []


def test_a_text_is_checked_without_being_kept(client):
    good = client.check_rules(pack_text())
    bad = client.check_rules("- name: a\n  when: {signal: ppl}\n- name: b\n  when: {sql: select 1 from raw.run}")

    assert (len(good["rules"]), good["problems"]) == (7, [])
    assert bad["problems"][0] == {"where": "a: when (line 2)", "message": "say either above or below"}
    assert bad["problems"][1]["where"] == "b: sql"
    assert client.rules() == []


def test_a_replay_tells_what_would_have_been_and_changes_nothing(server, client):
    send(server, server.open(permissions=ACT), FALL)
    told = client.replay_rules("r", json.dumps(GUARD))

    assert [(one["step"], one["kind"], one["outcome"]) for one in told] == [
        (4, "rule_fired", "acted"), (7, "rule_ended", "acted")
    ]  # fmt: skip
    assert told[0]["values"] == {"entropy_mean": 0.1}
    assert client.replay_rules("r") == []  # the server holds none
    assert events(server) == []
    assert client.desired("r").version == 0
    with pytest.raises(Refused, match="404"):
        client.replay_rules("none")


def test_a_replay_and_the_live_engine_agree(server, client):
    client.put_rule(GUARD)
    send(server, server.open(permissions=ACT), FALL)

    lived = eventually(lambda: events(server), [(4, "rule_fired"), (7, "rule_ended")])
    assert lived == [(one["step"], one["kind"]) for one in client.replay_rules("r")]


def test_what_a_rule_switched_on_comes_with_the_next_acknowledgement(server, client):
    client.put_rule(GUARD)
    stream = server.open(permissions=ACT)
    send(server, stream, FALL[:5])
    assert eventually(lambda: [i.name for i in client.desired("r").interventions], ["scope"]) == ["scope"]
    ack = send(server, stream, FALL[5:6], first=5)

    assert [(i["name"], i["by"], i["params"]) for i in ack["desired"]["interventions"]] == [
        ("scope", "rule:guard", {"lam": 0.1})
    ]  # fmt: skip


def test_a_run_that_observes_is_told_only(server, client):
    client.put_rule(GUARD)
    send(server, server.open(), FALL)

    assert eventually(lambda: events(server), [(4, "rule_fired"), (7, "rule_ended")]) == [
        (4, "rule_fired"), (7, "rule_ended")
    ]  # fmt: skip
    assert client.desired("r").version == 0


@pytest.mark.parametrize("killed_after", [2, 5])
def test_after_a_kill_nothing_is_lost_and_nothing_fires_twice(own_server, killed_after):
    server = own_server().start()
    with Client(server.url) as client:
        client.put_rule(GUARD)
    stream = server.open(permissions=ACT)
    send(server, stream, FALL[:killed_after])
    server.kill()  # the engine may have seen all of these steps, or none
    server.start()
    send(server, stream, FALL[killed_after:], first=killed_after)

    expected = [(4, "rule_fired"), (7, "rule_ended")]
    assert eventually(lambda: events(server), expected) == expected
    rows = server.ask("select version, document from desired_state where run = 'r' order by version")
    on = [[i["name"] for i in json.loads(document)["interventions"]] for _, document in rows]
    assert on in ([["scope"], []], [])  # [] where both happened in one transaction


def test_what_was_due_when_the_server_died_is_done_when_it_starts(own_server):
    server = own_server().start()
    with Client(server.url) as client:
        client.put_rule(GUARD)
    send(server, server.open(permissions=ACT), FALL)
    server.kill()
    server.start()

    assert eventually(lambda: events(server), [(4, "rule_fired"), (7, "rule_ended")]) == [
        (4, "rule_fired"), (7, "rule_ended")
    ]  # fmt: skip


def test_rules_need_the_scope_control_and_their_list_does_not(own_server, tmp_path):
    from entrostat.server.auth import add_token

    tokens = tmp_path / "tokens.json"
    reader, controller = add_token(tokens, "reader", ["read"]), add_token(tokens, "hand", ["control", "read"])
    server = own_server("--tokens", str(tokens)).start()
    with Client(server.url, token=reader) as client:
        assert client.rules() == []
        with pytest.raises(Refused, match="403"):
            client.put_rule(GUARD)
    with Client(server.url, token=controller) as client:
        assert client.put_rule(GUARD)["version"] == 1
