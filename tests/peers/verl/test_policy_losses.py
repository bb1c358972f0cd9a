"""Our policy loss, Clip-Cov and KL-Cov are verl 0.9.1's own functions in loss and gradient; where not, it says so."""

import pytest
import torch
from peers.verl.both_sides import EPS_HIGH, EPS_LOW, batch, covariance, gap, ours, verls

TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6}
BATCHES = {
    "off policy": {},
    "on policy": {"on_policy": True},
    "holes in the mask": {"has_holes": True},
    "advantages per token": {"is_per_token": True, "has_holes": True},
}
B, T = 6, 24
STEP_TOKENS, STEP_RESPONSES = 500, 32  # of a step that this batch is a micro-batch of
AGGREGATIONS = [
    ("token-mean", {}, {"aggregation": "token"}),
    ("seq-mean-token-mean", {}, {"aggregation": "response"}),
    ("token-sum", {}, {"aggregation": "fixed", "normaliser": 1.0}),
    ("seq-mean-token-sum", {}, {"aggregation": "fixed", "normaliser": B}),
    ("seq-mean-token-sum-norm", {}, {"aggregation": "fixed", "normaliser": B * T}),
    ("token-mean", {"batch_num_tokens": STEP_TOKENS}, {"aggregation": "fixed", "normaliser": STEP_TOKENS}),
    (
        "seq-mean-token-sum-norm",
        {"global_batch_size": STEP_RESPONSES, "loss_scale_factor": 100},
        {"aggregation": "fixed", "normaliser": STEP_RESPONSES * 100},
    ),
]
LOW, HIGH = 0.1, 1.5  # a band that a good part of these batches' tokens lies in
METHODS = {
    "vanilla": ({}, {}),
    # A share of 1 takes every candidate: no choice is left to chance.
    "clip_cov": (
        {"clip_cov": {"r": 1.0, "w_low": LOW, "w_high": HIGH}},
        {"clip_cov_ratio": 1.0, "clip_cov_lb": LOW, "clip_cov_ub": HIGH},
    ),
    "kl_cov": (
        {"kl_cov": {"k": 0.1, "beta": 0.7, "clip": False}},
        {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize(("mode", "step", "aggregation"), AGGREGATIONS, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("name", METHODS)
def test_loss_and_gradient_are_verls(name, mode, step, aggregation, kind, dtype, note_difference):
    active, options = METHODS[name]
    for seed in range(5):
        seen = batch(seed, dtype, **BATCHES[kind])
        expected, expected_grad = verls(name, seen, mode, global_batch=step, **options)
        result, grad = ours(active, seen, **aggregation)

        assert grad.dtype == dtype
        for what, found, peer in (("loss", result.loss.detach(), expected), ("gradient", grad, expected_grad)):
            # Signed terms of the loss cancel: its error is measured against what was added up.
            scale = expected_grad.abs().sum() if what == "loss" else peer.abs().max()
            difference = ((found - peer).abs().max() / scale).item()
            note_difference(f"{name}, {what}, {str(dtype).removeprefix('torch.')}", difference)
            assert difference <= TOLERANCE[dtype]


@pytest.mark.parametrize("kind", BATCHES)
def test_these_batches_have_tokens_on_either_side_of_every_choice(kind):
    """Or the test above would compare little."""
    for seed in range(5):
        seen = batch(seed, **BATCHES[kind])
        score = covariance(seen)
        assert 0 < ((score > LOW) & (score < HIGH)).sum() < len(score)
        result, _ = ours({"clip_cov": {"r": 1.0, "w_low": LOW, "w_high": HIGH}}, seen)
        assert 0 < result.counts["clip_cov_tokens"] < len(score)
        if kind != "on policy":
            ratio = (seen.logp - seen.old_logp)[seen.mask].exp()
            assert (ratio > 1 + EPS_HIGH).any()
            assert (ratio < 1 - EPS_LOW).any()


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_clip_cov_with_the_same_random_order_leaves_out_the_same_tokens(seed, share, monkeypatch):
    """verl shuffles the candidates by torch.randperm; it is given the order of our draws instead of its own."""
    seen = batch(seed, b=8, t=40)
    batches_before = seed
    draws = torch.rand(seen.mask.shape, generator=torch.Generator().manual_seed(11 + batches_before))
    score = torch.full_like(seen.logp, torch.nan)
    score[seen.mask] = covariance(seen)
    candidates = (score > LOW) & (score < HIGH) & ~is_clipped(seen)
    monkeypatch.setattr(torch, "randperm", lambda n: order_of(draws[candidates], n))

    options = {"clip_cov_ratio": share, "clip_cov_lb": LOW, "clip_cov_ub": HIGH}
    expected, expected_grad = verls("clip_cov", seen, **options)
    params = {"r": share, "w_low": LOW, "w_high": HIGH, "seed": 11}
    result, grad = ours({"clip_cov": params}, seen, states={"clip_cov": batches_before})

    assert gap(result.loss.detach(), expected) < 1e-12
    assert gap(grad, expected_grad) < 1e-12
    left_out = seen.mask & (grad == 0) & ~is_clipped(seen)
    assert left_out.sum() == result.counts["clip_cov_tokens"] == max(int(share * seen.mask.sum()), 1)
    assert left_out.sum() < candidates.sum()


@pytest.mark.parametrize("seed", range(10))
def test_clip_cov_by_its_own_chance_leaves_out_as_many_of_the_same_candidates(seed):
    seen = batch(seed, b=8, t=40)
    torch.manual_seed(seed)
    _, verls_grad = verls("clip_cov", seen, clip_cov_ratio=0.03, clip_cov_lb=LOW, clip_cov_ub=HIGH)
    _, grad = ours({"clip_cov": {"r": 0.03, "w_low": LOW, "w_high": HIGH, "seed": seed}}, seen)
    _, all_grad = ours({"clip_cov": {"r": 1.0, "w_low": LOW, "w_high": HIGH}}, seen)

    candidates = is_left_out(all_grad, seen)
    for one in (verls_grad, grad):
        assert not (is_left_out(one, seen) & ~candidates).any()
        assert is_left_out(one, seen).sum() == int(0.03 * seen.mask.sum())
    assert not torch.equal(is_left_out(verls_grad, seen), is_left_out(grad, seen))


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
@pytest.mark.parametrize("on_policy", [False, True])
def test_with_verls_defaults_one_token_is_taken_of_a_small_batch_by_both(name, on_policy):
    """0.0002 of these tokens is none; both take one all the same. Clip-Cov's one candidate is the batch's only one."""
    seen = batch(3, on_policy=on_policy)
    highest = covariance(seen).sort().values
    active, options = {
        "clip_cov": (
            {"r": 0.0002, "w_low": single_candidate(seen)[0], "w_high": single_candidate(seen)[1]},
            {"clip_cov_lb": single_candidate(seen)[0], "clip_cov_ub": single_candidate(seen)[1]},
        ),
        "kl_cov": ({"k": 0.0002, "beta": 0.1, "clip": False}, {}),
    }[name]
    assert highest[-1] > highest[-2]

    expected, expected_grad = verls(name, seen, **options)
    result, grad = ours({name: active}, seen)

    assert result.counts[f"{name}_tokens"] == 1
    assert gap(result.loss.detach(), expected) < 1e-12
    assert gap(grad, expected_grad) < 1e-12


def test_on_policy_kl_cov_is_silent_in_both():
    seen = batch(0, on_policy=True)
    _, verls_grad = verls("kl_cov", seen, kl_cov_ratio=0.2, ppo_kl_coef=1.0)
    result, grad = ours({"kl_cov": {"k": 0.2, "beta": 1.0, "clip": False}}, seen)
    _, plain = ours({}, seen)

    assert torch.equal(grad, plain)
    assert gap(verls_grad, plain) < 1e-12
    assert result.counts["kl_cov_tokens"] > 0
    assert result.counts["kl_cov_moved"] == 0


# Where ours differs ---------------------------------------------------------------------------------------------


def test_kl_cov_keeps_the_clip_unless_told_otherwise_and_verls_has_none():
    """Inside the clip the two are one; a token beyond it has a gradient in verl, and none in ours but the penalty's."""
    params, options = {"k": 0.1, "beta": 0.7}, {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7}
    seen = batch(1)
    near = seen.with_(old_logp=seen.logp + (seen.old_logp - seen.logp).clamp(-0.2, 0.2))
    assert gap(ours({"kl_cov": params}, near)[1], verls("kl_cov", near, **options)[1]) < 1e-12

    _, grad = ours({"kl_cov": params}, seen)
    _, verls_grad = verls("kl_cov", seen, **options)
    differs = (grad - verls_grad).abs() > 1e-12
    assert differs.any()
    assert torch.equal(differs, is_clipped(seen) & seen.mask)


def test_the_plain_loss_has_no_dual_clip():
    """verl stops the gradient of A < 0 at a ratio above clip_ratio_c, 3 by default; Eq. 7 of PPO does not."""
    seen = batch(2)
    seen = seen.with_(old_logp=seen.logp + 4 * (seen.old_logp - seen.logp))
    _, grad = ours({}, seen)
    _, verls_grad = verls("vanilla", seen, clip_ratio_c=3.0)

    ratio = (seen.logp - seen.old_logp).exp()
    is_dual_clipped = (seen.advantages < 0) & (ratio > 3) & seen.mask
    assert is_dual_clipped.any()
    assert (verls_grad[is_dual_clipped] == 0).all()
    assert (grad[is_dual_clipped] > 0).all()
    assert gap(grad[~is_dual_clipped], verls_grad[~is_dual_clipped]) < 1e-12


def test_a_response_without_tokens_counts_as_a_response_here_and_in_verl_only_when_told_how_many_there_are():
    """As in TRL. verl's trainer does tell (``global_batch_size``); untold, verl leaves the response out of the mean."""
    seen = batch(4)
    seen.mask[2] = False
    result, grad = ours({}, seen, aggregation="response")

    told, told_grad = verls("vanilla", seen, "seq-mean-token-mean", global_batch={"global_batch_size": B})
    untold, untold_grad = verls("vanilla", seen, "seq-mean-token-mean")
    assert gap(result.loss.detach(), told) < 1e-12
    assert gap(grad, told_grad) < 1e-12
    assert gap(result.loss.detach() * B / (B - 1), untold) < 1e-12
    assert gap(grad * B / (B - 1), untold_grad) < 1e-12


def test_a_batch_without_any_token_is_a_loss_of_zero_here_and_nan_in_verl():
    seen = batch(4)
    seen.mask[:] = False
    result, grad = ours({}, seen)

    assert result.loss == 0
    assert not grad.any()
    assert verls("vanilla", seen)[0].isnan()


@pytest.mark.parametrize("name", METHODS)
def test_padding_may_hold_nan_here_where_verl_needs_numbers(name):
    active, options = METHODS[name]
    seen = batch(5)
    spoiled = seen.with_(
        logp=seen.logp.masked_fill(~seen.mask, torch.nan), old_logp=seen.old_logp.masked_fill(~seen.mask, torch.nan)
    )
    expected, expected_grad = verls(name, seen, "seq-mean-token-mean", **options)
    result, grad = ours(active, spoiled, aggregation="response")

    assert gap(result.loss.detach(), expected) < 1e-12
    assert gap(grad, expected_grad) < 1e-12
    assert verls(name, spoiled, "seq-mean-token-mean", **options)[0].isnan()


def test_a_share_is_rounded_down_from_the_number_meant_where_verls_float64_falls_below_it():
    """0.29 x 100 is 28.999999999999996 in float64: verl takes 28 tokens, we 29."""
    seen = batch(0, b=4, t=25)
    seen.mask[:] = True
    result, grad = ours({"kl_cov": {"k": 0.29, "beta": 1.0, "clip": False}}, seen)
    _, verls_grad = verls("kl_cov", seen, kl_cov_ratio=0.29, ppo_kl_coef=1.0)

    assert result.counts["kl_cov_tokens"] == 29
    assert ((grad - verls_grad).abs() > 1e-12).sum() == 1


def is_clipped(seen):
    """[B, T] tokens that the clip of PPO takes out of the gradient."""
    ratio = (seen.logp - seen.old_logp).exp()
    above = (ratio > 1 + EPS_HIGH) & (seen.advantages > 0)
    return above | ((ratio < 1 - EPS_LOW) & (seen.advantages < 0))


def is_left_out(grad, seen):
    """[B, T] response tokens that Clip-Cov, and not the clip, took out of the gradient."""
    return seen.mask & (grad == 0) & ~is_clipped(seen)


def order_of(draws, n):
    """Places of the ``n`` draws, the largest first, which is the first that we take."""
    assert len(draws) == n
    return draws.argsort(descending=True)


def single_candidate(seen):
    """A band of covariance with one unclipped token in it."""
    score = torch.full_like(seen.logp, -torch.inf)
    score[seen.mask] = covariance(seen)
    highest = score.masked_fill(is_clipped(seen), -torch.inf).flatten().sort(descending=True).values
    return ((highest[0] + highest[1]) / 2).item(), highest[0].item() + 1
