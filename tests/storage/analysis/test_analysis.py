"""Statements about runs: known curves are recognised, and what cannot be said is refused with the reason."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrostat.storage.analysis.entropy_law import entropy_law
from entrostat.storage.analysis.floor_forecast import floor_forecast
from entrostat.storage.analysis.stage import stage
from entrostat.storage.analysis.student import t_quantile
from entrostat.wire.errors import NotFound

STEPS = np.arange(1, 401)


def fall(tau, height=1.0, rest=0.2, noise=0.0, seed=0, steps=STEPS):
    return rest + height * np.exp(-steps / tau) + np.random.default_rng(seed).normal(0, noise, steps.size)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.7062047), (2, 4.30265273), (3, 3.18244631), (6, 2.44691185), (9, 2.26215716), (30, 2.04227246),
     (1000, 1.96233908)],
)  # fmt: skip
def test_students_t_is_that_of_the_tables(degrees, expected):
    assert t_quantile(0.95, degrees) == pytest.approx(expected, rel=1e-8)


law = st.fixed_dictionaries(
    {
        "a": st.floats(-3, 3),
        "b": st.floats(-5, 5),
        "entropy": st.lists(st.floats(0, 3), min_size=8, max_size=40).filter(lambda h: max(h) - min(h) > 0.1),
    }
)


@settings(max_examples=100, deadline=None)
@given(law)
def test_a_law_without_noise_is_recovered(made):
    entropy = np.array(made["entropy"])
    found = entropy_law(entropy, -made["a"] * np.exp(entropy) + made["b"])

    assert found.refused is None
    assert (found.a, found.b, found.ceiling) == pytest.approx(
        (made["a"], made["b"], made["b"] - made["a"]), rel=1e-6, abs=1e-6
    )
    assert found.rmse == pytest.approx(0, abs=1e-9)


def test_the_ceilings_interval_holds_the_truth_as_often_as_it_says():
    draw, held, trials = np.random.default_rng(1), 0, 2000
    for _ in range(trials):
        entropy = draw.uniform(0.2, 1.0, 12)
        found = entropy_law(entropy, -0.3 * np.exp(entropy) + 1.2 + draw.normal(0, 0.1, 12))
        held += found.ceiling_low <= 0.9 <= found.ceiling_high

    assert held / trials == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("entropy", "reward", "reason"),
    [
        (np.linspace(0, 1, 7), np.zeros(7), "7 points"),
        (np.full(20, 0.5), np.arange(20.0), "spans 0 nats"),
        (np.linspace(0, 1, 9), np.array([math.nan] + [0.0] * 8), "not finite"),
        (np.linspace(0, 1000, 9), np.zeros(9), "not finite"),
        (np.zeros(0), np.zeros(0), "0 points"),
    ],
)
def test_a_law_that_cannot_be_fitted_is_refused_with_the_reason(entropy, reward, reason):
    found = entropy_law(entropy, reward)

    assert reason in found.refused
    assert (found.a, found.ceiling, found.num_points) == (None, None, entropy.size)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("tau", [20, 40, 60])
def test_the_plateau_begins_when_most_of_the_fall_is_done(tau, noise):
    found = stage(STEPS, fall(tau, noise=noise))

    assert found.stage == "plateau"
    assert 1 * tau < found.plateau_from < 5 * tau


def test_a_steady_fall_is_no_plateau_however_long():
    assert stage(STEPS, 3 - 0.005 * STEPS).stage == "rising"
    assert stage(STEPS, 3 - 0.005 * STEPS + np.random.default_rng(0).normal(0, 0.02, 400)).stage == "rising"


def test_noise_about_a_level_is_a_plateau_from_the_beginning():
    found = stage(STEPS, np.random.default_rng(0).normal(1.0, 0.05, 400))

    assert found.stage == "plateau"


def test_a_pause_before_the_fall_or_a_second_fall_is_no_plateau():
    pause = np.concatenate([np.full(100, 1.2), fall(30, steps=np.arange(60))])
    again = np.concatenate([fall(20, steps=np.arange(200)), 0.2 - 0.005 * np.arange(30)])

    for entropy in (pause, again):
        assert stage(np.arange(entropy.size), entropy).stage == "rising"


def test_the_range_is_that_since_the_baseline():
    entropy = fall(30)
    entropy[:5] = 9.0

    assert stage(STEPS, entropy, from_step=6).entropy_range == pytest.approx(np.ptp(entropy[5:]))


def test_a_stage_of_too_few_or_broken_values_is_refused():
    assert "12 steps" in stage(STEPS[:12], fall(9)[:12]).refused
    assert "0 steps" in stage(np.zeros(0), np.zeros(0)).refused
    assert "not finite" in stage(STEPS, np.full(400, math.nan)).refused


@settings(max_examples=100, deadline=None)
@given(st.floats(0.15, 3), st.floats(5, 500), st.integers(0, 1000), st.integers(1, 3))
def test_an_exponential_fall_is_forecast_exactly(height, tau, begin, stride):
    steps = begin + stride * np.arange(40)
    entropy = height * np.exp(-(steps - begin) / tau)
    found, true = floor_forecast(steps, entropy, floor=0.01), begin + tau * math.log(height / 0.01)

    if found.refused is None:
        assert found.trend == "exponential"
        expected = max(math.ceil(true - 1e-6), steps[-1] + 1)
        assert abs(found.step - expected) <= 1
        assert found.step_low <= found.step <= found.step_high
    else:
        assert "already" in found.refused
        assert np.median(entropy[-8:]) <= 0.01


def test_a_straight_fall_is_forecast_with_an_interval_that_odd_steps_do_not_move():
    steps = np.arange(100)
    entropy = 1.0 - 0.005 * steps + np.random.default_rng(0).normal(0, 0.005, 100)
    entropy[[60, 75, 90]] = 5.0
    found = floor_forecast(steps, entropy, floor=0.1)

    assert found.step == pytest.approx(180, abs=8)
    assert found.step_low <= 180 <= found.step_high
    assert found.step_high - found.step_low < 40


@pytest.mark.parametrize(
    ("entropy", "reason"),
    [
        (1.0 + 0.001 * np.arange(60), "does not fall"),
        (np.random.default_rng(3).normal(1, 0.1, 60), "does not fall"),
        (np.full(60, 1.0), "does not fall"),
        (np.full(60, 0.05), "already"),
        (np.linspace(1, 0.5, 5), "5 steps"),
        (np.full(60, math.inf), "not finite"),
        (np.zeros(0), "0 steps"),
    ],
)
def test_a_forecast_that_cannot_be_made_is_refused_with_the_reason(entropy, reason):
    found = floor_forecast(np.arange(entropy.size), entropy)

    assert reason in found.refused
    assert (found.step, found.floor) == (None, 0.1)


def test_a_run_is_analysed_by_its_evaluated_reward_where_there_is_one(store, produce):
    one = produce(settings={"baseline_steps": 2})
    entropy = fall(40)
    rows = [{"step": int(s), "name": "entropy_mean", "value": float(h)} for s, h in zip(STEPS, entropy)]
    rows += [{"step": int(s), "name": "reward_mean", "value": 1 - math.exp(h)} for s, h in zip(STEPS, entropy)]
    one.send(step_metric=rows)
    trained = store.analysis("r")
    evaluated = [
        {"step": s, "name": "trainer/eval_reward", "value": 5 - math.exp(entropy[s - 1])} for s in range(10, 400, 10)
    ]
    one.send(step_metric=evaluated)
    held_out, named = store.analysis("r"), store.analysis("r", floor=0.19, reward="reward_mean")

    assert trained["reward"] == named["reward"] == "reward_mean"
    assert (trained["entropy_law"]["ceiling"], trained["num_steps"]) == (pytest.approx(0.0, abs=1e-9), 400)
    assert trained["stage"]["stage"] == "plateau"
    assert (held_out["reward"], held_out["entropy_law"]["num_points"]) == ("trainer/eval_reward", 39)
    assert held_out["entropy_law"]["ceiling"] == pytest.approx(4.0)
    assert named["entropy_floor_forecast"]["floor"] == 0.19


def test_an_empty_run_is_refused_everything_and_an_unknown_one_an_error(store, produce):
    produce()
    found = store.analysis("r")

    assert all(found[name]["refused"] for name in ("stage", "entropy_law", "entropy_floor_forecast"))
    assert store.analysis("r", reward="nothing")["reward"] == "nothing"
    with pytest.raises(NotFound):
        store.analysis("nope")
