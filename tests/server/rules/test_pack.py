"""The built-in rules: silent on healthy runs, whatever their noise; each heard on the failure that it is for."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.histories import healthy, noise, what

from entrostat.server.rules.history import Row
from entrostat.wire.rules.pack import pack

PACK = pack()


def falling(to, over):
    return lambda t: np.maximum(0.55 * np.exp(-t / over), to) + noise(3, t.size, 0.01)


FAILURES = {
    "entropy-collapse": {
        "entropy_mean": lambda t: 0.55 * np.exp(-t / 90) + noise(1, t.size, 0.01),
        "reward_mean": lambda t: 0.4 + noise(2, t.size, 0.03),
    },
    "entropy-surge": {"entropy_mean": lambda t: 0.5 * np.exp(np.maximum(t - 100, 0) / 60) + noise(1, t.size, 0.02)},
    "covariance-tail": {
        "cov_top_0_02pct": lambda t: np.exp(0.5 + np.minimum(np.maximum(t - 80, 0) / 20, 4) + noise(1, t.size, 0.3)),
        "entropy_mean": lambda t: 0.55 * np.exp(-t / 400) + noise(2, t.size, 0.01),
    },
    "dead-groups": {"zero_variance_groups": lambda t: np.clip(0.4 + t / 200 + noise(1, t.size, 0.03), 0, 1)},
    "truncation": {"truncated_rate": lambda t: np.clip(0.05 + np.maximum(t - 100, 0) / 200, 0, 1)},
    "length-drift": {
        "length_mean": lambda t: 400 + 6 * np.maximum(t - 60, 0) + noise(1, t.size, 30),
        "reward_mean": lambda t: 0.4 + noise(2, t.size, 0.03),
    },
    "kl-blow-up": {"approx_kl": lambda t: np.where(t > 150, 0.2, 0.002) + noise(1, t.size, 0.0002)},
}


@pytest.mark.parametrize("seed", range(0, 200, 25))
def test_a_healthy_run_is_left_alone(seed):
    assert what(healthy(seed), PACK) == []


def test_so_is_one_whose_entropy_is_spent_while_the_reward_repays_it():
    rows = healthy(entropy_mean=falling(0.05, 90), reward_mean=lambda t: 0.2 + 0.6 * t / t.size)

    assert what(rows, PACK) == []


def test_so_is_one_that_declines_slowly():
    rows = healthy(entropy_mean=lambda t: 0.55 - 0.0006 * t + noise(1, t.size, 0.02), reward_mean=lambda t: 0.5 + 0 * t)

    assert what(rows, PACK) == []


def test_so_is_one_that_has_mastered_its_task():
    def mastered(t):
        return np.clip(0.3 + t / 100, 0, 0.99)

    rows = healthy(
        entropy_mean=falling(0.01, 60),
        reward_mean=mastered,
        pass_at_1=mastered,
        zero_variance_groups=mastered,
        all_right_groups=mastered,
    )
    assert what(rows, PACK) == []


def test_so_is_every_run_in_its_first_steps_whatever_they_look_like():
    rows = healthy(steps=24, entropy_mean=lambda t: 2.0 * np.exp(-t / 4), length_mean=lambda t: 100.0 * (1 + t))

    assert what(rows, PACK) == []


def test_so_is_a_run_that_measures_next_to_nothing():
    rows = [type(row)(row.step, {"reward_mean": row.values["reward_mean"]}) for row in healthy()]

    assert what(rows, PACK) == []


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("seed", [0, 50])
def test_a_failure_is_told_by_its_rule(name, seed):
    told = [(rule, step) for rule, step, kind in what(healthy(seed, **FAILURES[name]), PACK) if kind == "rule_proposed"]

    assert name in {rule for rule, _ in told}, told
    assert {rule for rule, _ in told} <= {name, "entropy-collapse", "covariance-tail"}


def test_a_collapse_is_told_before_it_has_happened():
    rows = healthy(**FAILURES["entropy-collapse"])
    (first, *_) = [step for rule, step, _ in what(rows, PACK) if rule == "entropy-collapse"]

    assert rows[first].values["entropy_mean"] > 0.2 * np.mean([row.values["entropy_mean"] for row in rows[:5]])


def recorded(name):
    curves = json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text())
    steps = curves.pop("step")
    return [
        Row(step, {signal: values[i] for signal, values in curves.items() if values[i] is not None})
        for i, step in enumerate(steps)
    ]


def test_of_two_real_runs_the_one_whose_entropy_is_held_is_left_alone():
    assert what(recorded("held"), PACK) == []
    assert what(recorded("collapsing"), PACK) == [("entropy-collapse", 114, "rule_proposed")]
