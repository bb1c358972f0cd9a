"""What is true, what is false, and what is not known at a step."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.histories import history, series

from entrostat.server.rules.conditions import Reading, kendall_tau, slope, statistic_of, steps_to_arrival
from entrostat.server.rules.sql import bound
from entrostat.server.rules.truth import all_of, any_of, lasted, negated
from entrostat.server.rules.words import words
from entrostat.wire.rules.rule import read_rule

TRUTHS = st.sampled_from([True, False, None])


def condition(**document):
    return read_rule({"name": "a", "when": document}).when


def truths(document, rows, sql=None, **more):
    """The truth of a condition at every step."""
    rule = read_rule({"name": "a", "when": document})
    past, streaks, found = history(rows, [rule], **more), {}, []
    for i in range(len(rows)):
        reading = Reading(past.at(i, {text: value(rows[i].step) for text, value in (sql or {}).items()}), streaks)
        found.append(reading.truth(rule.when, "when"))
        streaks = reading.after
    return found


@given(st.lists(TRUTHS, min_size=1, max_size=6))
def test_all_any_and_not_agree_with_every_way_the_unknown_could_turn_out(values):
    unknown = [i for i, v in enumerate(values) if v is None]
    worlds = [
        [bool(n >> unknown.index(i) & 1) if v is None else v for i, v in enumerate(values)]
        for n in range(2 ** len(unknown))
    ]
    for of, plainly in ((all_of, all), (any_of, any)):
        outcomes = {plainly(world) for world in worlds}
        assert of(values) is (outcomes.pop() if len(outcomes) == 1 else None)
    assert [negated(v) for v in (True, False, None)] == [False, True, None]


@given(st.lists(TRUTHS, max_size=12), st.integers(1, 4))
def test_what_has_lasted_was_known_and_true_at_each_of_the_last_steps(values, num):
    streak, answer = (0, None), None
    for value in values:
        answer, streak = lasted(value, streak, num)
    last = values[-num:]
    if len(last) == num and all(v is True for v in last):
        assert answer is True
    elif False in last:
        assert answer is False
    else:
        assert answer is None


def test_a_bound_is_passed_not_met():
    assert truths({"signal": "ppl", "above": 2}, series("ppl", [1, 2, 3, None])) == [False, False, True, None]
    assert truths({"signal": "ppl", "below": 2}, series("ppl", [1, 2, 3, None])) == [True, False, False, None]


def test_a_window_with_a_hole_or_before_its_first_full_one_is_unknown():
    found = truths({"signal": "ppl", "above": 0, "window": 3}, series("ppl", [1, 1, 1, 1, None, 1, 1, 1]))

    assert found == [None, None, True, True, None, None, None, True]


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [("mean", 3.0), ("min", 1.0), ("max", 6.0), ("last", 2.0), ("slope", 0.5), ("trend", 1 / 3), (None, 3.0)],
)
def test_the_statistic_of_a_window(statistic, expected):
    asked = condition(signal="ppl", above=0, window=3, **({"statistic": statistic} if statistic else {}))
    facts = history(series("ppl", [9, 1, 6, 2]), []).at(3)
    facts = type(facts)(run="r", step=3, acts_from=3, rows=series("ppl", [9, 1, 6, 2]))

    assert statistic_of(asked, facts) == pytest.approx(expected)


def test_slope_and_trend_of_known_lines():
    import numpy as np

    steps = np.array([0.0, 2.0, 5.0, 9.0])
    assert slope(steps, 3 - 0.25 * steps) == pytest.approx(-0.25)
    assert kendall_tau(steps, -(steps**3)) == -1.0
    assert kendall_tau(steps, 0 * steps) == 0.0


def test_relative_to_the_baseline_is_unknown_until_the_baseline_is_over():
    found = truths(
        {"signal": "ppl", "above": 1.5, "relative_to": "baseline"}, series("ppl", [2, 4, 6, 5, 7]), num_baseline=3
    )
    assert found == [None, None, None, False, True]  # the mean of 2, 4, 6 is 4


def test_relative_to_nothing_is_unknown():
    asked = {"signal": "ppl", "above": 1, "relative_to": "baseline"}

    assert truths(asked, series("ppl", [0, 0, 9]), num_baseline=2) == [None, None, None]


def test_relative_to_a_step_is_unknown_before_it():
    found = truths({"signal": "ppl", "below": 0.6, "relative_to": {"step": 2}}, series("ppl", [1, 1, 10, 7, 5]))

    assert found == [None, None, False, False, True]


def test_arrival_is_when_the_trend_is_there():
    values = [1.0 - 0.01 * i for i in range(60)]
    asked = condition(signal="entropy_mean", reaches=0.2, within_steps=30, window=20)
    facts = history(series("entropy_mean", values), [read_rule({"name": "a", "when": {"stage": "rising"}})]).at(59)
    facts = type(facts)(run="r", step=59, acts_from=59, rows=series("entropy_mean", values))

    assert steps_to_arrival(asked, facts) == 80 - 59


def test_arrival_says_nothing_early_no_where_it_does_not_fall_and_yes_where_it_is_there():
    asked = {"signal": "entropy_mean", "reaches": 0.2, "within_steps": 30, "window": 10}

    assert truths(asked, series("entropy_mean", [0.5] * 9)) == [None] * 9
    assert truths(asked, series("entropy_mean", [0.5] * 12))[9:] == [False] * 3
    assert truths(asked, series("entropy_mean", [0.1] * 12))[9:] == [True] * 3


def test_the_stage_is_unknown_at_first_and_then_a_plateau():
    curve = [1.0 - 0.005 * min(i, 60) + 1e-5 * (i % 3) for i in range(160)]
    found = truths({"stage": "plateau"}, series("entropy_mean", curve))

    assert found[0] is None
    assert found[60] is False
    assert found[-1] is True


def test_steps_count_as_the_trainer_counts():
    rows = series("ppl", [1, 1, 1, 1], first=98)

    assert truths({"step": {"from": 99, "to": 100}}, rows) == [False, True, True, False]
    assert truths({"step": {"from": 100}}, rows) == [False, False, True, True]


def test_an_sql_condition_is_a_truth_or_a_number_or_unknown():
    rows = series("ppl", [1, 1, 1, 1, 1])
    answers = {"select 1": lambda step: [True, 0.0, 2.0, None, False][step]}

    assert truths({"sql": "select 1"}, rows, answers) == [True, False, True, None, False]
    assert truths({"sql": "select 1", "above": 1.5}, rows, answers) == [False, False, True, None, False]


def test_run_and_step_are_put_in_as_literals_and_only_where_they_stand_free():
    said = "select count(*) > 3 from event where run = $run and step <= $step and message != '$run $step' -- $run"

    assert bound(said, "a.b", 7) == (
        "select count(*) > 3 from event where run = 'a.b' and step <= 7 and message != '$run $step' -- $run"
    )
    assert bound("select $runs, $step_s, $step", "r", 7) == "select $runs, $step_s, 7"


def test_a_condition_under_all_goes_on_counting_while_another_is_false():
    document = {"all": [{"signal": "ppl", "above": 1, "for_steps": 3}, {"step": {"from": 4}}]}

    assert truths(document, series("ppl", [2] * 6)) == [False, False, False, False, True, True]


def test_a_condition_is_said_in_words():
    said = words(condition(all=[
        {"signal": "entropy_mean", "statistic": "mean", "below": 0.5, "window": 20, "relative_to": "baseline",
         "for_steps": 10},
        {"not": {"stage": "plateau"}},
    ]))  # fmt: skip

    assert said == "(mean of entropy_mean over 20 steps / baseline below 0.5 for 10 steps and not (stage plateau))"


@settings(max_examples=30)
@given(st.lists(st.none() | st.floats(-1e3, 1e3), min_size=1, max_size=40), st.integers(1, 6), st.integers(1, 5))
def test_a_statement_over_a_window_that_lasts_needs_every_value_in_between(values, window, for_steps):
    found = truths(
        {"signal": "ppl", "above": 0, "window": window, "for_steps": for_steps}, series("ppl", values)
    )  # fmt: skip
    for i, truth in enumerate(found):
        needed = values[max(0, i - window - for_steps + 2) : i + 1]
        if truth is True:
            assert len(needed) == window + for_steps - 1
            assert all(v is not None and math.isfinite(v) for v in needed)
