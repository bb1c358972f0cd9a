"""Each check of ``entrostat lab theory`` turns to "NO" when a mistake is planted in what it checks."""

from dataclasses import replace

import numpy as np
import pytest

from entrostat.interventions import casp, chain, policy_loss
from entrostat.lab.sharpening import labels
from entrostat.lab.theory import (
    candidate_gradient,
    distinct,
    entropy_change,
    kernel,
    partition,
    redistribution,
    squeeze,
)
from entrostat.probe import token_stats
from entrostat.probe.signals import candidates, covariance, scope
from entrostat.wire.mergeable import Part

CASES = 15


def broken(check):
    return {f.identity for f in check(np.random.default_rng(0), CASES) if not f.holds}


def with_stats(monkeypatch, **changed):
    """Plant mistakes in the token statistics: field -> function of its right value."""
    real = token_stats.from_logits

    def wrong(*args, **kwargs):
        stats = real(*args, **kwargs)
        return replace(stats, **{name: change(getattr(stats, name)) for name, change in changed.items()})

    monkeypatch.setattr(token_stats, "from_logits", wrong)


SCORES = {
    "a factor 1 - p is missing": lambda s: np.exp(s.logp) * np.maximum(s.advantage, 0),
    "half of it": lambda s: np.exp(s.logp) * (1 - np.exp(s.logp)) * np.maximum(s.advantage, 0) / 2,
    "p squared": lambda s: np.exp(s.logp) ** 2 * (1 - np.exp(s.logp)) * np.maximum(s.advantage, 0),
    "negative advantages instead": lambda s: np.exp(s.logp) * (1 - np.exp(s.logp)) * np.maximum(-s.advantage, 0),
}


@pytest.mark.parametrize("mistake", SCORES)
def test_a_wrong_scope_score_breaks_the_decomposition(monkeypatch, mistake):
    monkeypatch.setattr(scope, "scope_token", SCORES[mistake])

    assert "S = L + R" in broken(redistribution.check)


def test_a_residual_of_the_wrong_sign_breaks_the_decomposition(monkeypatch):
    real = redistribution.residual
    monkeypatch.setattr(redistribution, "residual", lambda *a: -real(*a))

    assert "S = L + R" in broken(redistribution.check)


def test_a_residual_without_its_factor_breaks_the_ratio(monkeypatch):
    real = redistribution.residual
    monkeypatch.setattr(redistribution, "residual", lambda *a: 2 * real(*a))

    assert broken(redistribution.check) == {"S = L + R", "|R|/L"}


THEOREMS = {"dH/d eta = -Cov(log pi, dz)", "entropy change, policy gradient", "entropy change, natural gradient"}
COVARIANCES = {
    "wrong sign": lambda x, y: -(x - x.mean()) * (y - y.mean()),
    "n - 1 in the denominator": lambda x, y: (x - x.mean()) * (y - y.mean()) * x.size / (x.size - 1),
    "neither is centred": lambda x, y: x * (y + 1),
    "doubled": lambda x, y: 2 * (x - x.mean()) * (y - y.mean()),
}


@pytest.mark.parametrize("mistake", COVARIANCES)
def test_a_wrong_covariance_breaks_the_theorems(monkeypatch, mistake):
    token = COVARIANCES[mistake]
    monkeypatch.setattr(covariance, "cov_token", lambda s: token(s.logp, s.advantage))
    # The signal is wrong in the same way, so it is not their disagreement that is seen.
    monkeypatch.setattr(
        covariance, "comoment_of", lambda x, y: Part("comoment", (float(x.size), 0.0, 0.0, float(token(x, y).sum())))
    )

    assert broken(entropy_change.check) >= THEOREMS


@pytest.mark.parametrize("side", ["logp", "advantage"])
def test_a_token_covariance_that_is_centred_on_one_side_only_is_seen(monkeypatch, side):
    """Its mean is right all the same."""

    def half(step):
        other = {"logp": step.advantage, "advantage": step.logp}[side]
        return (getattr(step, side) - getattr(step, side).mean()) * other

    monkeypatch.setattr(covariance, "cov_token", half)

    assert broken(entropy_change.check) == {"a token's covariance sees no baseline"}


def test_a_signal_that_disagrees_with_its_tokens_is_seen(monkeypatch):
    real = covariance.comoment_of
    monkeypatch.setattr(covariance, "comoment_of", lambda x, y: real(x, -y))

    assert broken(entropy_change.check) >= THEOREMS


@pytest.mark.parametrize(
    "mistake",
    [lambda h: h / np.log(2), lambda h: -h, lambda h: h.exp()],
    ids=["in bits", "wrong sign", "perplexity"],
)
def test_a_wrong_entropy_breaks_the_theorems(monkeypatch, mistake):
    with_stats(monkeypatch, entropy=mistake)

    assert broken(entropy_change.check) >= THEOREMS - {"dH/d eta = -Cov(log pi, dz)"}


def test_a_step_without_the_probability_is_no_policy_gradient(monkeypatch):
    theorem = replace(entropy_change.THEOREMS[0], weighted=lambda case: case.advantage)
    monkeypatch.setattr(entropy_change, "THEOREMS", (theorem,))

    assert "entropy change, policy gradient" in broken(entropy_change.check)


def test_z_without_the_push_of_its_samples_breaks_the_bounds(monkeypatch):
    monkeypatch.setattr(partition, "partition", lambda batch: float((batch.ref * np.exp(-batch.push)).sum()))

    assert {f for f in broken(partition.check) if f.startswith("Z'")}


@pytest.mark.parametrize("name", ["bound", "bound_by_means"])
def test_a_bound_that_forgets_the_group_size_is_broken(monkeypatch, name):
    real = getattr(partition, name)
    monkeypatch.setattr(partition, name, lambda b: 1 + (real(b) - 1) * b.counts.sum())

    assert any(f.startswith("Z'") for f in broken(partition.check))


def test_a_batch_optimal_policy_that_is_not_the_maximiser_is_seen(monkeypatch):
    monkeypatch.setattr(partition.Batch, "push", property(lambda b: b.counts * b.advantage / b.counts.sum()))

    assert "batch-optimal policy" in broken(partition.check)


def test_unsampled_modes_that_grow_are_seen(monkeypatch):
    monkeypatch.setattr(partition, "batch_optimal", lambda b: b.ref * partition.partition(b))

    assert "unsampled modes shrink where Z' > 1" in broken(partition.check)


def planted_distinct(draws_off=0, factor=1.0, bound_factor=1.0):
    real = candidates.expected_distinct

    def wrong(top, draws):
        low, _ = real(top, draws + draws_off)
        return low * factor, low + bound_factor * draws * np.maximum(1 - np.exp(top).sum(1), 0)

    return wrong


@pytest.mark.parametrize("mistake", [{"draws_off": -1}, {"draws_off": 1}, {"factor": 1.01}])
def test_a_wrong_number_of_distinct_tokens_is_seen(monkeypatch, mistake):
    monkeypatch.setattr(candidates, "expected_distinct", planted_distinct(**mistake))

    assert broken(distinct.check) >= {"E[distinct], counted"}


def test_a_bound_without_the_number_of_draws_is_seen(monkeypatch):
    monkeypatch.setattr(candidates, "expected_distinct", planted_distinct(bound_factor=0.0))

    assert broken(distinct.check) == {"our bounds of E[distinct]"}


def test_a_policy_loss_of_the_wrong_sign_or_factor_is_seen(monkeypatch):
    real = policy_loss.policy_loss
    for factor in (-1.0, 0.5):
        monkeypatch.setattr(
            policy_loss, "policy_loss", lambda *a, f=factor, **k: replace(real(*a, **k), loss=f * real(*a, **k).loss)
        )
        found = broken(squeeze.check)
        assert {"negative update raises z_v by |A| r p_v", "d ln p_1 = |A| r (p_1 + p_y - sum p^2)"} <= found


def test_a_wrong_sum_of_squares_rank_or_log_prob_is_seen(monkeypatch):
    for changed, identity in (
        ({"sum_p2": lambda x: x**0.5}, "d ln p_1 = |A| r (p_1 + p_y - sum p^2)"),
        ({"top_ids": lambda x: (x + 1) % 3}, "rank 1 gains most"),
        ({"logp": lambda x: x - 0.01}, "d p_y / d z_v = p_y ([v=y] - p_v)"),
    ):
        with monkeypatch.context() as patch:
            with_stats(patch, **changed)
            assert identity in broken(squeeze.check)


GRADIENT = "r+ has the gradient r ((1-a) g + (a/N) sum g_n)"
VALUE = "r+ has the value r"
WRONG_TOP1 = "a wrong rank-1 token's gradient is lambda A r g"
CASPS = {
    "the sampled token gives nothing away": (
        lambda old, new, tokens: new + 0.1 * (tokens.logp - tokens.logp.detach()),
        {GRADIENT, WRONG_TOP1},
    ),
    "the value moves": (lambda old, new, tokens: new + 1e-6, {GRADIENT, VALUE, WRONG_TOP1}),
    "nothing is done": (lambda old, new, tokens: old, {GRADIENT, WRONG_TOP1}),
    "without a stop-gradient": (lambda old, new, tokens: new + tokens.top_logps[..., 0], {GRADIENT, VALUE, WRONG_TOP1}),
}


@pytest.mark.parametrize("mistake", CASPS)
def test_a_casp_that_redirects_otherwise_is_seen(monkeypatch, mistake):
    change, expected = CASPS[mistake]
    real = casp.casp

    def wrong(params):
        transform = real(params)

        def apply(tokens, state):
            new, state = transform.apply(tokens, state)
            return new.with_(log_ratio=change(tokens.log_ratio, new.log_ratio, tokens)), state

        return replace(transform, apply=apply)

    monkeypatch.setattr(casp, "METHOD", replace(casp.METHOD, make=wrong))
    monkeypatch.setitem(chain.BY_NAME, "casp", casp.METHOD)

    assert broken(candidate_gradient.check) == expected


@pytest.mark.parametrize("parameter", ["a", "num_candidates", "lambda_top1", "tau"])
def test_a_parameter_of_casp_that_does_not_arrive_is_seen(monkeypatch, parameter):
    fixed = {"a": 0.01, "num_candidates": 1, "lambda_top1": 1.1, "tau": 0.8}[parameter]
    monkeypatch.setattr(candidate_gradient, "chain", lambda on: chain.chain({"casp": on["casp"] | {parameter: fixed}}))

    assert broken(candidate_gradient.check)


def test_labels_that_share_weights_are_seen(monkeypatch):
    real = labels.logits
    monkeypatch.setattr(labels, "logits", lambda w, given: real(w, given) + 0.1 * real(w, given).sum(2, keepdim=True))

    assert "K is e_q . e_q' at one label, 0 between two" in broken(kernel.check)


def test_another_embedding_of_siamese_is_seen(monkeypatch):
    monkeypatch.setitem(labels.SIAMESE_INPUTS, "mid", (0.2, 0.5, 0.8, 0.1))

    assert broken(kernel.check) == {
        "rho = 0.635, 0.56, 0.51",
        "lambda / rho = 1.38, 1.57, 1.72",
        "lambda / rho, with lambda = 0.885",
    }
