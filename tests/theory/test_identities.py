"""The papers' identities on the product's own functions, on cases that hypothesis picks."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from entrostat.lab.theory import (
    candidate_gradient,
    distinct,
    entropy_change,
    kernel,
    partition,
    policy,
    redistribution,
    registry,
    squeeze,
)
from entrostat.lab.theory.candidate_gradient import Response
from entrostat.lab.theory.entropy_change import Bandit
from entrostat.lab.theory.partition import Batch
from entrostat.lab.theory.redistribution import Outcomes
from entrostat.lab.theory.squeeze import Push

quick = settings(deadline=None, max_examples=60)
numbers = st.floats(-6, 6, allow_subnormal=False)


def vectors(smallest=2, largest=12, elements=numbers):
    return st.integers(smallest, largest).flatmap(lambda n: arrays(np.float64, n, elements=elements))


@st.composite
def outcomes(draw):
    logits = draw(vectors())
    shape = (logits.size, draw(st.integers(1, 4)))
    weight = draw(arrays(np.float64, shape, elements=st.floats(0.01, 1)))
    advantage = draw(arrays(np.float64, shape, elements=numbers))
    advantage[0, 0] += 10  # some advantage: with none there is nothing to scale an error by
    return Outcomes(logits, weight / weight.sum(1, keepdims=True), advantage)


@st.composite
def bandits(draw):
    q = draw(vectors(3, 10))
    return Bandit(draw(arrays(np.int64, q.size, elements=st.integers(1, 60))), q)


@st.composite
def batches(draw):
    weight = draw(vectors(3, 10, st.floats(1e-6, 1)))
    counts = draw(arrays(np.int64, weight.size, elements=st.integers(0, 6)))
    is_right = draw(arrays(np.bool_, weight.size))
    # One right and one wrong sample, or there is no advantage; and one mode that was not sampled.
    counts[0], is_right[0], counts[1], is_right[1], counts[2] = max(counts[0], 1), True, max(counts[1], 1), False, 0
    return Batch(weight / weight.sum(), is_right, counts, draw(st.floats(0.05, 10)))


@pytest.mark.parametrize("seed", range(3))
def test_every_identity_of_the_table_holds(seed):
    broken = [f for f in registry.findings(seed, 20) if not f.holds]

    assert broken == []


# 1. SCOPE Prop. 1


@quick
@given(case=outcomes(), eta=st.floats(1e-3, 1e3))
def test_the_score_is_what_the_redistribution_leaves_when_its_residual_is_taken_away(case, eta):
    gap = redistribution.magnitude(case, eta) - redistribution.leading(case, eta) - redistribution.residual(case, eta)

    assert np.abs(gap).max() <= 1e-14 * eta * redistribution.scale(case)


def test_the_table_of_a23_has_the_papers_numbers():
    rows = {round(row[0], 3): row[1:] for row in redistribution.table()}

    assert rows[0.3][:2] == pytest.approx((0.21, 0.4))
    assert rows[0.5] == pytest.approx((0.25, 0.0, 0.0, 0.0), abs=1e-15)
    assert rows[0.7][:2] == pytest.approx((0.21, 0.4))
    assert rows[0.3][2:] == pytest.approx((0.2, 2 / 3))  # half of |1-2p|: see the module's decision
    assert rows[0.0][:2] == pytest.approx((0, 1), abs=1e-5)
    assert rows[1.0][:2] == pytest.approx((0, 1), abs=1e-5)


def test_the_residual_is_not_small_where_the_paper_calls_the_surrogate_loose():
    assert redistribution.ratio(1e-3, 1.0, 0.0) > 100
    assert redistribution.ratio(0.5, 1.0, 0.0) == 0.0


# 2. Entropy Mechanism Thm 1 and 2


@quick
@given(case=bandits())
def test_a_natural_gradient_step_is_the_advantage_up_to_a_constant(case):
    gap = entropy_change.natural_gradient(case) - case.advantage

    assert np.ptp(gap) <= 1e-9 * (1 + np.abs(case.q).max())


@quick
@given(case=bandits())
def test_a_policy_gradient_step_is_probability_times_advantage(case):
    expected = case.counts / case.counts.sum() * case.advantage

    assert entropy_change.policy_gradient(case) == pytest.approx(expected, rel=1e-9, abs=1e-13)


@quick
@given(case=bandits(), theorem=st.sampled_from(entropy_change.THEOREMS))
def test_what_the_covariance_leaves_of_the_entropys_change_is_of_second_order(case, theorem):
    step, slope = theorem.step(case), -entropy_change.batch_covariance(case, theorem.weighted(case))
    size = np.ptp(step) + 1e-3
    eta = 1e-3 / size

    rest = entropy_change.change(case, step, eta) - eta * slope

    assert abs(rest) <= 10 * (eta * size) ** 2


@pytest.mark.parametrize("theorem", [0, 1])
def test_the_ratio_comes_ten_times_nearer_to_one_with_a_step_ten_times_smaller(theorem):
    ratios = entropy_change.worst_ratios(np.random.default_rng(1), 20)[theorem]

    errors = np.abs(ratios - 1)
    assert errors[1:-1] / errors[2:] == pytest.approx(10, rel=0.5)
    assert errors[3] / errors[4] == pytest.approx(10, rel=0.01)


# 3. Over-sharpening Thm 2.2 and 2.3


@quick
@given(case=batches())
def test_z_is_above_each_of_its_bounds_and_they_are_in_order(case):
    z = partition.partition(case)
    first, means, extremes = partition.bound(case), partition.bound_by_means(case), partition.bound_by_extremes(case)

    slack = 1e-12 * max(1.0, abs(z))
    assert z >= first - slack
    assert first == pytest.approx(means, rel=1e-10, abs=1e-10)
    assert means >= extremes - slack


@quick
@given(case=batches())
def test_every_unsampled_mode_shrinks_by_the_same_factor_when_z_is_above_one(case):
    z, after = partition.partition(case), partition.batch_optimal(case)
    unsampled = case.counts == 0

    assert after.sum() == pytest.approx(1)
    assert after[unsampled] / case.ref[unsampled] == pytest.approx(1 / z)
    if partition.bound_by_extremes(case) > 1 + 1e-12:
        assert (after[unsampled] < case.ref[unsampled]).all()


@quick
@given(case=batches())
def test_the_closed_form_maximises_the_objective_with_pi_in_its_first_term(case):
    weight = case.beta + np.abs(case.advantage).max()

    assert partition.slope(case) <= 1e-13 * weight


def test_the_objective_as_printed_has_its_maximum_elsewhere():
    draw = np.random.default_rng(0)
    slopes = [partition.slope(partition.random_batch(draw), as_printed=True) for _ in range(20)]

    assert min(slopes) > 1e-3


def test_the_objective_as_printed_has_no_maximum_once_a_wrong_response_was_sampled():
    case = partition.random_batch(np.random.default_rng(0))
    wrong = (case.counts > 0) & ~case.is_right
    values = []
    for depth in (0, 100, 1000, 10_000):
        logits = np.log(case.ref) - depth * wrong
        logp = logits - np.log(np.exp(logits).sum())
        gain = (case.counts / case.counts.sum() * case.advantage * logp).sum()
        values.append(gain - case.beta * (np.exp(logp) * (logp - np.log(case.ref))).sum())

    assert np.diff(values).min() > 0
    assert values[-1] > 100 * abs(values[0])


# 4. CaSP Prop. 3 and Lemma 2


@quick
@given(logits=vectors(2, 4), draws=st.integers(1, 4))
def test_expected_distinct_is_the_mean_over_all_outcomes(logits, draws):
    p = policy.probabilities(logits)
    exact = sum(
        np.prod([p[v] for v in outcome]) * len(set(outcome))
        for outcome in itertools.product(range(p.size), repeat=draws)
    )

    assert distinct.ours(logits, draws, p.size) == pytest.approx((exact, exact), rel=1e-12)
    assert distinct.counted(p, draws) == pytest.approx(exact, rel=1e-12)


@quick
@given(logits=vectors(4, 20), draws=st.integers(1, 1024), kept=st.integers(1, 4))
def test_the_true_value_lies_between_what_is_measured_and_its_bound(logits, draws, kept):
    p = policy.probabilities(logits)
    exact = -np.expm1(draws * np.log1p(-np.minimum(p, 1 - 1e-16))).sum()

    low, high = distinct.ours(logits, draws, kept)

    assert low <= exact * (1 + 1e-12)
    assert high >= exact * (1 - 1e-12)


@quick
@given(logits=vectors(3, 12), label=st.integers(0, 2), strength=st.floats(0.01, 5), ratio=st.floats(0.81, 1.19))
def test_a_negative_update_feeds_the_others_by_their_probability(logits, label, strength, ratio):
    p = policy.probabilities(logits)

    dz = squeeze.rise(Push(logits, label, -strength, ratio))

    others = np.arange(p.size) != label
    assert dz[others] == pytest.approx((strength * ratio * p)[others], rel=1e-9)
    assert dz[label] <= 0
    assert dz.sum() == pytest.approx(0, abs=1e-12 * strength)
    assert p[others][np.argmax(dz[others])] == pytest.approx(p[others].max())


def test_penalising_the_first_candidate_itself_does_not_raise_it():
    push = Push(np.array([3.0, 1.0, 0.0]), 0, -1.0, 1.0)

    dz = squeeze.rise(push)

    assert dz[0] < 0
    assert dz[1] > dz[2] > 0


# 5. CaSP Eq. 5 and 13


@st.composite
def responses(draw):
    seed, sign = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([-1, 1]))
    return candidate_gradient.random_response(np.random.default_rng(seed), sign)


@quick
@given(case=responses())
def test_casp_sends_the_gradient_where_the_paper_says(case):
    gradient, _ = candidate_gradient.ours(case)

    assert gradient == pytest.approx(candidate_gradient.formula(case), abs=1e-13 * abs(case.advantage))


def test_a_candidate_gains_what_the_sampled_token_gives_away():
    """Two tokens; the first, uniform over three, is above the quantile. A = 2, r = 1, a = 0.3 over two candidates."""
    case = Response(np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]]), np.array([2, 0]), np.ones(2), 2.0, 0.3, 2, 1.1, 0.5)

    gradient, ratio = candidate_gradient.ours(case)

    thirds = np.array([0.3 / 2, 0.3 / 2, 0.7]) - 1 / 3
    assert gradient[0] == pytest.approx(2 * thirds)
    assert ratio == pytest.approx(1)


# 6. Over-sharpening App. G


def test_the_kernel_ratios_are_the_papers_up_to_its_slip_in_lambda():
    own, rho = kernel.entries(torch.zeros(4, 4, dtype=torch.float64))

    assert own == pytest.approx(0.75**2 + 0.5**2 + 0.25**2 + 0.1**2)
    assert {name: round(0.8775 / value, 2) for name, value in rho.items()} == {"high": 1.38, "mid": 1.57, "low": 1.72}
    assert {name: round(own / value, 2) for name, value in rho.items()} == {"high": 1.39, "mid": 1.58, "low": 1.74}
