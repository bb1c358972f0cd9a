"""Rules as text: what is read, and how every mistake is named."""

import json

import pytest
from pydantic import ValidationError

from entrostat.wire.errors import BadParameter
from entrostat.wire.rules.conditions import MAX_CONDITIONS, parts
from entrostat.wire.rules.pack import pack, pack_text
from entrostat.wire.rules.rule import HoldRule, Rule, RunFilter, document_of, read_rule
from entrostat.wire.rules.text import parse, parse_or_raise

GUARD = """
- name: collapse-guard
  when: {signal: d_collapse, above: 0.25, for_steps: 10}
  do:   {intervention: scope, params: {q: 0.05, lam: 0.1}}
  until: {signal: d_collapse, below: 0.15, for_steps: 20}
  cooldown_steps: 50
  mode: advise
"""
THERMOSTAT = """
- name: entropy-thermostat
  hold: {signal: entropy_mean, at: 0.35, band: 0.05}
  with: {intervention: kl_cov, param: beta, min: 0, max: 4, gain: 0.5}
"""


def problems(text):
    return [(p.where, p.message) for p in parse(text).problems]


def when(condition):
    return json.dumps({"name": "a", "when": condition})


def test_a_rule_and_a_thermostat_are_read_from_yaml():
    guard, thermostat = parse_or_raise(GUARD + THERMOSTAT)

    assert isinstance(guard, Rule)
    assert (guard.when.signal, guard.when.above, guard.when.for_steps) == ("d_collapse", 0.25, 10)
    assert (guard.do.intervention, guard.do.params, guard.mode) == ("scope", {"q": 0.05, "lam": 0.1}, "advise")
    assert isinstance(thermostat, HoldRule)
    assert (thermostat.with_.off_at, thermostat.with_.rate) == (0.0, 0.4)


def test_advise_is_the_default_and_a_rule_rests_after_it_ended():
    (rule,) = parse_or_raise(when({"stage": "plateau"}))

    assert (rule.mode, rule.cooldown_steps, rule.runs.name) == ("advise", 50, "*")


@pytest.mark.parametrize("wrap", [lambda d: d[0], lambda d: d, lambda d: {"rules": d}])
def test_one_rule_a_list_and_a_mapping_of_rules_are_taken_as_json_too(wrap):
    documents = [document_of(rule) for rule in parse_or_raise(GUARD)]

    assert parse_or_raise(json.dumps(wrap(documents))) == parse_or_raise(GUARD)


def test_what_is_written_out_is_read_back_the_same():
    rules = (*parse_or_raise(GUARD + THERMOSTAT), *pack())

    assert tuple(read_rule(json.loads(json.dumps(document_of(rule)))) for rule in rules) == rules


def test_every_kind_of_condition_is_found_with_its_path():
    (rule,) = parse_or_raise(
        when({"all": [{"any": [{"stage": "plateau"}, {"step": {"from": 3}}]}, {"not": {"sql": "select 1 > 2"}}]})
    )

    assert [path for path, _ in parts(rule.when)] == ["", "all.0", "all.0.any.0", "all.0.any.1", "all.1", "all.1.not"]


def test_a_mistake_is_named_with_rule_field_and_line():
    text = """
- name: guard
  when:
    all:
      - signal: d_colapse
        above: 1
      - {signl: ppl}
  do: {intervention: scope, params: {q: 7}}
- name: other
  when: {stage: plateau}
  wen: 3
"""
    assert problems(text) == [
        ("guard: when.all.0.signal (line 5)", "unknown signal 'd_colapse'; did you mean d_collapse? (entrostat signals "
         "lists them; what the trainer logs itself is trainer/<name>)"),
        ("guard: when.all.1 (line 7)", "a condition has one of signal, stage, step, sql, all, any, not (signal with "
         "above, below or reaches)"),
        ("guard: do (line 8)", "scope.q: Input should be less than or equal to 1; its parameters are q, lam, "
         "threshold"),
        ("other: wen (line 11)", "Extra inputs are not permitted"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"signal": "ppl"}, "say either above or below"),
        ({"signal": "ppl", "above": 1, "below": 2}, "say either above or below"),
        ({"signal": "entropy_men", "above": 1}, "did you mean entropy_mean?"),
        ({"signal": "d_entropy", "above": 1}, "use entropy_mean with window: 10 and statistic: slope"),
        ({"signal": "ppl", "above": 1, "statistic": "slope"}, "needs a window of at least 3"),
        ({"signal": "ppl", "above": 1, "statistic": "trend", "window": 9, "relative_to": "baseline"}, "has no scale"),
        ({"signal": "ppl", "above": float("inf")}, "finite"),
        ({"signal": "ppl", "above": 1, "for_steps": 0}, "greater than or equal to 1"),
        ({"step": {"from": 5, "to": 4}}, "before from"),
        ({"stage": "falling"}, "'rising' or 'plateau'"),
        ({"all": []}, "at least 1 item"),
        ({"sql": "select 1", "above": 1, "below": 2}, "either above or below"),
        ({}, "a condition has one of"),
        (3, "a condition has one of"),
    ],
)
def test_a_condition_that_cannot_be_is_refused(condition, said):
    assert any(said in message for _, message in problems(when(condition)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"intervention": "kl_cv"}, "did you mean kl_cov?"),
        ({"param": "bta"}, "did you mean beta?"),
        ({"param": "clip"}, "is no real number"),
        ({"max": 400}, "less than or equal to 100"),
        ({"min": 4}, "must be below max"),
        ({"gain": 0}, "would never move"),
        ({"neutral": 5}, "from min to max"),
        ({"params": {"beta": 1}}, "leave it out of params"),
        ({"intervention": "iac", "param": "alpha", "selection": "step"}, "with a threshold"),
    ],
)
def test_an_actuator_that_cannot_be_is_refused(change, said):
    actuator = {"intervention": "kl_cov", "param": "beta", "min": 0, "max": 4, "gain": 0.5} | change
    rule = {"name": "a", "hold": {"signal": "entropy_mean", "at": 1, "band": 0.1}, "with": actuator}

    assert any(said in message for _, message in problems(json.dumps(rule)))


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("a: &x 1\nb: *x", "the text (line 2)", "write *x out"),
        ("- name: a\n  name: b", "name (line 2)", "given twice"),
        ("- [", "the text (line 1)", "no YAML"),
        ("3", "the text", "write a list of rules"),
        ("[" * 3000 + "]" * 3000, "the text", "nested too deep"),
        ("- !!python/object/apply:os.system [x]", "the text (line 1)", "no YAML"),
        (GUARD + GUARD, "collapse-guard", "two rules have this name"),
        ("x" * 300_000, "the text", "at most"),
    ],
)
def test_a_text_that_is_none_is_refused_without_an_exception(text, where, said):
    found = problems(text)

    assert found[0][0] == where
    assert said in found[0][1]


def test_no_rules_are_no_mistake():
    assert parse("") == parse("[]") == parse("rules: []")
    assert parse("").problems == ()


def test_all_mistakes_are_told_at_once():
    with pytest.raises(BadParameter, match=r"(?s)a: when.*b: when"):
        parse_or_raise("- {name: a, when: {stage: x}}\n- {name: b, when: {stage: y}}")


def test_a_rule_has_no_more_conditions_than_a_server_can_bear():
    many = {"all": [{"any": [{"stage": "plateau"}] * 20}] * (MAX_CONDITIONS // 20 + 1)}

    assert "at most 50" in problems(when(many))[0][1]


def test_an_end_after_steps_and_one_by_a_condition_are_told_apart():
    after = read_rule({"name": "a", "when": {"stage": "plateau"}, "until": {"steps": 100}})
    by = read_rule({"name": "a", "when": {"stage": "plateau"}, "until": {"stage": "rising"}})

    assert (after.on_steps, len(after.conditions)) == (100, 1)
    assert (by.on_steps, len(by.conditions)) == (None, 2)
    with pytest.raises(ValidationError, match=r"until\.steps"):
        read_rule({"name": "a", "when": {"stage": "plateau"}, "until": {"steps": 0}})


def test_what_is_done_once_is_taken_back_without_being_told():
    once = read_rule({"name": "a", "when": {"stage": "plateau"}, "do": {"intervention": "save_checkpoint"}})

    assert once.on_steps == 20


def test_a_rule_is_for_the_runs_its_filter_fits():
    chosen = RunFilter(name="math-*", tags={"size": "7b"})

    assert chosen.fits("math-1", {"size": "7b", "more": "x"})
    assert not chosen.fits("math-1", {"size": "1b"})
    assert not chosen.fits("code-1", {"size": "7b"})
    assert RunFilter().fits("anything", {})


def test_the_pack_has_a_rule_for_each_known_failure_and_says_why():
    rules = pack()

    assert [rule.name for rule in rules] == [
        "entropy-collapse", "entropy-surge", "covariance-tail", "dead-groups", "truncation", "length-drift",
        "kl-blow-up",
    ]  # fmt: skip
    assert all(rule.mode == "advise" and rule.evidence and rule.meaning and rule.do for rule in rules)
    assert parse(pack_text()).problems == ()
