"""What the control page says, from what the server said."""

import json

import pytest
from support.service import Process

from entrostat.dashboard.pages import control_parts as parts
from entrostat.dashboard.pages.control_state import Shown
from entrostat.dashboard.pages.rules import checked, replayed, signals_of, text_of
from entrostat.dashboard.spans import spans_of
from entrostat.dashboard.standing import lines
from entrostat.server.auth import add_token
from entrostat.wire.client import Client
from entrostat.wire.errors import Refused
from entrostat.wire.messages import ActiveIntervention, DesiredState, Permissions
from entrostat.wire.rules.pack import pack
from entrostat.wire.rules.rule import document_of
from entrostat.wire.rules.text import parse


def text(component):
    """All text in a component."""
    if isinstance(component, list | tuple):
        return " ".join(text(part) for part in component)
    if hasattr(component, "to_plotly_json"):
        return text(getattr(component, "children", None))
    return "" if component is None else str(component)


def shown(status="live", mode="act", desired=None, events=(), last_step=20):
    detail = {"run": "r", "status": status, "last_seen": "2026-01-01T00:00:00+00:00", "last_step": last_step}
    state, spans = desired or DesiredState(), spans_of(events)
    return Shown(detail, Permissions(mode=mode), state, list(events), spans, lines(state, spans, events, 20), {}, [])


@pytest.mark.parametrize("code", ["no_token", "unknown_token", "missing_scope"])
def test_a_token_that_may_not_control_is_told_with_the_way_to_one(code):
    said = text(parts.refused(Refused(403, code, "the token may ['read'], this needs 'control'")))

    assert "may ['read']" in said
    assert "ENTROSTAT_TOKEN" in said
    assert "--scope control" in said


def test_a_dashboard_that_may_only_read_says_so_when_it_is_asked_to_act(tmp_path):
    tokens = tmp_path / "tokens.json"
    token = add_token(tokens, "dashboard", ["read"])
    server = Process("entrostat.server", "--data", tmp_path / "data", "--tokens", tokens).start("/healthz")
    try:
        said = text(parts.tried(lambda: Client(server.url, token).stop_all("mine", "why", "anna")))
    finally:
        server.stop()

    assert "this needs 'control'" in said
    assert "ENTROSTAT_TOKEN" in said


def test_a_server_that_does_not_answer_has_changed_nothing():
    assert "Nothing was changed" in text(parts.tried(lambda: Client("http://127.0.0.1:9").arm("mine", "why", "anna")))


def test_another_refusal_is_the_servers_own_words_alone():
    assert text(parts.refused(Refused(403, "not_allowed", "this run does not allow casp"))) == (
        "this run does not allow casp"
    )


def test_a_trainer_that_is_silent_and_a_run_that_only_observes_are_said():
    assert parts.notice(shown()) is None
    assert "waits until it answers" in text(parts.notice(shown("silent")))
    assert "has ended" in text(parts.notice(shown("ended")))
    assert "mode='advise'" in text(parts.notice(shown(mode="observe")))


def test_the_status_line_counts_what_the_trainer_has_not_acknowledged():
    wanted = ActiveIntervention(name="kl_cov", because="why", by="person:anna")
    detail = wanted.model_dump(mode="json")
    on = {"kind": "intervention_on", "step": 7, "message": "", "detail": detail}
    asked = DesiredState(version=1, interventions=[wanted])

    assert "0 in force, 1 not acknowledged yet" in text(parts.status_line(shown(desired=asked)))
    heard = text(parts.status_line(shown(desired=asked, events=[on])))
    assert "1 in force" in heard
    assert "not acknowledged" not in heard
    assert "stopped" in text(parts.status_line(shown(desired=DesiredState(is_armed=False))))


def test_what_has_not_changed_is_not_drawn_again_and_what_grows_is_the_timeline():
    wanted = ActiveIntervention(name="kl_cov", because="why", by="person:anna")
    on = {"kind": "intervention_on", "step": 7, "message": "", "detail": wanted.model_dump(mode="json")}
    asked = DesiredState(version=1, interventions=[wanted])
    before, after = (shown(desired=asked, events=[on], last_step=n).digests for n in (20, 21))

    assert before["lines"] == after["lines"]
    assert before["timeline"] != after["timeline"]
    assert before["lines"] != shown(desired=asked).digests["lines"]


def test_an_effect_is_told_with_its_standard_error_and_its_number_of_steps():
    span = {"mean": 0.5, "se": 0.01, "num_steps": 20}
    none = {"mean": None, "se": None, "num_steps": 0}
    signal = {"signal": "entropy_mean", "before": span, "on": span | {"mean": 0.75}, "after": none,
              "on_minus_before": {"value": 0.25, "se": 0.014},
              "after_minus_before": {"value": None, "se": None}}  # fmt: skip
    effect = {"name": "kl_cov", "start": 5, "end": None, "params": {"k": 0.01}, "because": "why", "also_on": ["scope"],
              "changes": [], "signals": [signal, signal | {"before": none, "on": none}]}  # fmt: skip
    said = text(parts.effects_table([effect]))

    assert "0.5 ± 0.01 (20)" in said
    assert "+0.25 ± 0.014" in said
    assert "from step 5 still on" in said
    assert "together with scope" in said
    assert said.count("entropy mean") == 1  # a signal without values has no row
    assert parts.effects_table([]) == []


def test_mistakes_are_told_with_their_places_and_right_rules_by_name():
    wrong = checked({"rules": [], "problems": [{"where": "a: when.signal (line 2)", "message": "unknown signal"}]})
    right = checked({"rules": [{"name": "a", "mode": "act"}], "problems": []})

    assert "a: when.signal (line 2)" in text(wrong)
    assert "a (act)" in text(right)


def test_every_rule_of_the_pack_is_written_as_text_that_reads_as_the_same_rule():
    for rule in pack():
        assert parse(text_of(document_of(rule))).rules == (rule,)


def test_the_signals_of_a_rule_are_found_wherever_it_names_them():
    rule = {"when": {"any": [{"signal": "a"}, {"not": {"signal": "b"}}]}, "until": {"signal": "a"}}

    assert signals_of(rule) == ["a", "b"]
    assert signals_of({"hold": {"signal": "c", "at": 1}}) == ["c"]


def test_a_replay_marks_a_signal_with_the_firings_of_the_rules_that_look_at_it():
    curve = {"run": "r", "name": "a", "step": [1, 2, 3], "time": [], "value": [1, 2, 3], "low": [1, 2, 3],
             "high": [1, 2, 3], "se": None, "bucket_steps": 1}  # fmt: skip
    firings = [{"rule": "one", "step": 2, "kind": "rule_fired", "message": "<b>", "values": {"a": 2.0}},
               {"rule": "two", "step": 3, "kind": "rule_fired", "message": "", "values": {}}]  # fmt: skip
    made = replayed("r", firings, {"one": ["a"], "two": ["b"]}, [curve])
    chart = json.loads(made[0].children[0].children[1].figure.to_json())

    assert [shape["x0"] for shape in chart["layout"]["shapes"]] == [2]
    assert "<b>" not in chart["data"][-1]["text"][0]
    assert "a 2" in text(made[1])
    assert "Nothing would have fired" in text(replayed("r", [], {}, []))
