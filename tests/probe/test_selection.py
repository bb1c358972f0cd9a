"""The sample of tokens is unbiased, keeps what the scores single out, and leaves the trainer's random numbers alone."""

import numpy as np
import pytest
import torch
from support.steps import captured, observed, random_step

from entrostat.probe.definitions import Settings
from entrostat.probe.selection import COV, ENTROPY, SCOPE, UNIFORM, Scores, reason_name, select
from entrostat.probe.signals import signals_of
from entrostat.probe.step import gather


def test_the_top_of_each_score_is_kept_for_certain():
    scores = Scores(entropy=torch.arange(100.0), scope=-torch.arange(100.0), cov=torch.arange(100.0).roll(50))

    index, reason = select(scores, torch.ones(100, dtype=torch.bool), 24, torch.Generator().manual_seed(0))

    kept = dict(zip(index.tolist(), reason.tolist(), strict=True))
    assert len(kept) == 24
    assert {kept[99] & ENTROPY, kept[0] & SCOPE} == {ENTROPY, SCOPE}
    assert kept[49] & COV
    assert sum(1 for bits in kept.values() if bits == UNIFORM) >= 12


def test_padding_is_taken_only_when_nothing_else_is_left():
    valid = torch.tensor([True] * 5 + [False] * 20)

    index, _ = select(Scores(torch.rand(25)), valid, 5, torch.Generator().manual_seed(0))

    assert sorted(index.tolist()) == [0, 1, 2, 3, 4]


def test_the_weighted_mean_of_the_sample_is_unbiased_over_many_draws():
    step = random_step(0, num_prompts=8, longest=9)
    truth = np.mean([h for r in step for h in r["entropy"]])
    estimates = []
    for seed in range(400):
        data = gather([captured(step, budget=40, seed=seed)])
        weight = 1 / data.kept.prob
        estimates.append((data.entropy[data.kept.token] * weight).sum() / data.logp.size)
        assert weight.sum() == pytest.approx(data.logp.size)
    standard_error = np.std(estimates) / np.sqrt(len(estimates))

    assert np.mean(estimates) == pytest.approx(truth, abs=4 * standard_error)
    assert np.std(estimates) > 0


def test_the_reported_standard_error_of_a_rank_log_prob_is_that_of_many_draws():
    step = random_step(0, num_prompts=8, longest=9)
    exact = signals_of(gather([captured(step)]), [], Settings())["rank_logp_2"]
    parts = [
        signals_of(gather([captured(step, budget=40, seed=seed)]), [], Settings())["rank_logp_2"] for seed in range(400)
    ]
    draws = np.array([part.value for part in parts])
    claimed = np.array([part.standard_error for part in parts])

    assert exact.standard_error == 0
    assert draws.mean() == pytest.approx(exact.value, abs=4 * draws.std() / 20)
    assert np.sqrt((claimed**2).mean()) == pytest.approx(draws.std(), rel=0.15)


def test_measuring_all_rows_gives_exact_rank_log_probs_whatever_is_kept():
    step = random_step(0, num_prompts=8)

    few = signals_of(gather([captured(step, budget=10, measure_all=True)]), [], Settings())["rank_logp_1"]
    full = signals_of(gather([captured(step)]), [], Settings())["rank_logp_1"]

    assert few.value == pytest.approx(full.value)
    assert few.standard_error == 0


def test_choosing_rows_draws_nothing_from_the_trainers_random_state():
    before = torch.random.get_rng_state()

    captured(random_step(0), budget=5)

    assert torch.equal(before, torch.random.get_rng_state())


def test_a_capture_is_a_copy_that_the_trainer_may_overwrite():
    step = random_step(0)
    seen = observed(step)
    micro = captured(step)
    kept = micro.tensors["logp"].clone()

    seen.logp.zero_()

    assert torch.equal(micro.tensors["logp"], kept)


@pytest.mark.parametrize(
    ("bits", "name"), [(0, "all"), (UNIFORM, "uniform"), (COV | ENTROPY, "cov"), (SCOPE | COV, "scope")]
)
def test_a_rows_reason_is_the_first_that_applies(bits, name):
    assert reason_name(bits) == name
