"""Every method against its formula in loops over tokens, by value and by autograd, and the traps of each."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from entrostat.interventions import rewards
from entrostat.interventions.chain import chain
from entrostat.interventions.policy_loss import policy_loss

B, T, V = 6, 9, 7


class Batch:
    """Random logits of a policy, so that log-probs, entropy and candidates hang together and have gradients."""

    def __init__(self, seed, on_policy=False):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.logits = (2 * draw(B, T, V)).requires_grad_()
        self.ids = torch.randint(0, V, (B, T), generator=generator)
        lengths = torch.randint(3, T + 1, (B,), generator=generator)
        self.mask = (torch.arange(T) < lengths.unsqueeze(1)).long()
        self.advantages = draw(B)
        self.groups = torch.tensor([0, 0, 0, 1, 1, 1])
        self.noise = torch.zeros(B, T, dtype=torch.float64) if on_policy else 0.3 * draw(B, T)
        self.reference = draw(B, T, V).log_softmax(-1)

    def forward(self):
        logps = self.logits.log_softmax(-1)
        self.logp = logps.gather(-1, self.ids.unsqueeze(-1)).squeeze(-1)
        self.old = (self.logp + self.noise).detach()
        self.entropy = -(logps.exp() * logps).sum(-1)
        self.top = logps.sort(-1, descending=True).values[..., :4]
        self.is_top1 = logps.argmax(-1) == self.ids
        divergence = (logps.exp() * (logps - self.reference)).sum(-1)
        self.kl_rows = []

        def kl(rows):
            self.kl_rows.append(rows)
            return divergence.reshape(-1)[rows]

        self.kl = kl
        self.divergence = divergence
        return self

    def loss(self, active, **options):
        return policy_loss(
            self.logp, self.advantages, self.mask, old_logp=self.old, transforms=chain(active), entropy=self.entropy,
            top_logps=self.top, is_top1=self.is_top1, reference_kl=self.kl, groups=self.groups, **options,
        )  # fmt: skip

    def gradient(self, loss):
        return torch.autograd.grad(loss, self.logits, retain_graph=True)[0]

    def tokens(self):
        return [(i, t) for i in range(B) for t in range(T) if self.mask[i, t]]


def surrogate(batch, advantage=None, ratio=None, weight=None, low=0.2, high=0.2):
    """Mean over tokens of -w min(r A, clip(r) A); each argument a function of (i, t)."""
    total, tokens = 0.0, batch.tokens()
    for i, t in tokens:
        a = batch.advantages[i] if advantage is None else advantage(i, t)
        r = (batch.logp[i, t] - batch.old[i, t]).exp() if ratio is None else ratio(i, t)
        w = 1.0 if weight is None else weight(i, t)
        total = total - w * torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)
    return total / len(tokens)


def same(batch, loss, expected):
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10, abs=1e-12)
    assert torch.allclose(batch.gradient(loss), batch.gradient(expected), atol=1e-12)


def covariances(batch):
    tokens = batch.tokens()
    x = {k: batch.logp[k].item() for k in tokens}
    a = {k: batch.advantages[k[0]].item() for k in tokens}
    mean_x, mean_a = sum(x.values()) / len(x), sum(a.values()) / len(a)
    return {k: (x[k] - mean_x) * (a[k] - mean_a) for k in tokens}


def top(scores, count):
    return set(sorted(scores, key=lambda k: -scores[k])[:count])


SEEDS = pytest.mark.parametrize("seed", range(4))


@SEEDS
def test_scope_adds_the_mean_kl_of_the_tokens_that_move_most(seed):
    batch = Batch(seed).forward()
    p = {k: math.exp(batch.logp[k].item()) for k in batch.tokens()}
    score = {k: p[k] * (1 - p[k]) * max(batch.advantages[k[0]].item(), 0) for k in p}
    held = {k for k in top(score, int(0.2 * len(p))) if score[k] > 0}

    loss = batch.loss({"scope": {"q": 0.2, "lam": 0.7}}).loss

    same(batch, loss, surrogate(batch) + 0.7 * sum(batch.divergence[k] for k in held) / (len(held) + 1e-8))
    assert len(batch.kl_rows[0]) < B * T / 2  # the KL is asked for few rows, not for the batch


def test_scope_holds_nothing_where_no_advantage_is_positive():
    """Scores tie at 0; a threshold of 0 must not take them all."""
    batch = Batch(0)
    batch.advantages = -batch.advantages.abs()
    batch.forward()
    result = batch.loss({"scope": {"q": 0.5, "lam": 3.0}})

    same(batch, result.loss, surrogate(batch))
    assert result.counts["scope_tokens"] == 0


@SEEDS
@pytest.mark.parametrize("clip", [True, False])
def test_kl_cov_adds_the_distance_of_the_tokens_of_high_covariance(seed, clip):
    batch = Batch(seed).forward()
    held = top(covariances(batch), max(1, int(0.1 * len(batch.tokens()))))

    loss = batch.loss({"kl_cov": {"k": 0.1, "beta": 0.5, "clip": clip}}).loss

    wide = {} if clip else {"low": math.inf, "high": math.inf}
    penalty = sum((batch.logp[k] - batch.old[k]).abs() for k in held) / len(batch.tokens())
    same(batch, loss, surrogate(batch, **wide) + 0.5 * penalty)


def test_kl_cov_is_silent_on_policy_and_says_so():
    batch = Batch(1, on_policy=True).forward()
    result = batch.loss({"kl_cov": {"k": 0.2}})

    assert torch.equal(batch.gradient(result.loss), batch.gradient(batch.loss({}).loss))
    assert result.counts["kl_cov_tokens"] > 0
    assert result.counts["kl_cov_moved"] == 0


@SEEDS
def test_a_threshold_from_outside_takes_every_token_that_reaches_it(seed):
    """How a selection over the whole step and all ranks is handed down."""
    batch = Batch(seed).forward()
    cov = covariances(batch)
    threshold = sorted(cov.values())[-4]

    result = batch.loss({"kl_cov": {"threshold": threshold - 1e-9}})

    assert result.counts["kl_cov_tokens"] == 4


@SEEDS
def test_clip_cov_leaves_out_a_random_share_of_the_band(seed):
    batch = Batch(seed).forward()
    cov = covariances(batch)
    ratio = (batch.logp - batch.old).exp().detach()
    band = {k for k, c in cov.items() if 0.05 < c < 2.0}
    clipped = {
        k
        for k in cov
        if (ratio[k] > 1.2 and batch.advantages[k[0]] > 0) or (ratio[k] < 0.8 and batch.advantages[k[0]] < 0)
    }
    active = {"clip_cov": {"r": 0.1, "w_low": 0.05, "w_high": 2.0}}

    first = batch.loss(active)
    second = batch.loss(active, states=first.states)

    wanted = min(max(1, int(0.1 * len(cov))), len(band - clipped))
    left_out = []
    for result in (first, second):
        gradient = torch.autograd.grad(result.loss, batch.logp, retain_graph=True)[0]
        silent = {k for k in cov if gradient[k] == 0} - clipped
        assert len(silent) == wanted == result.counts["clip_cov_tokens"]
        assert silent <= band
        left_out.append(silent)
    assert batch.loss(active).loss == first.loss  # seeded
    if wanted < len(band - clipped) - 2:
        assert left_out[0] != left_out[1]  # and moves on with its state


@SEEDS
def test_casp_keeps_the_value_and_turns_the_gradient(seed):
    """r+ = (1-a) r + (a/N) sum sg(r / r_n) r_n, with the old policy's candidates made up: they cancel."""
    batch = Batch(seed).forward()
    n, a, factor, tau = 3, 0.3, 1.5, 0.5
    old_top = batch.top.detach() + 0.7 * torch.randn(
        batch.top.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )

    def ratio(i, t):
        r = (batch.logp[i, t] - batch.old[i, t]).exp()
        own = batch.entropy[i][batch.mask[i] != 0].detach()
        if batch.entropy[i, t] <= torch.quantile(own, tau):
            return r
        if batch.advantages[i] > 0:
            others = [(batch.top[i, t, j] - old_top[i, t, j]).exp() for j in range(n)]
            return (1 - a) * r + a / n * sum((r / r_n).detach() * r_n for r_n in others)
        return factor * r if batch.is_top1[i, t] else r

    result = batch.loss({"casp": {"num_candidates": n, "a": a, "lambda_top1": factor, "tau": tau}})

    same(batch, result.loss, surrogate(batch, ratio=ratio))
    assert result.counts["casp_gains"] > 0


def test_casps_extra_weight_on_a_wrong_top_token_survives_the_clip():
    """A < 0 and r above 1 + eps is not clipped by PPO: the gradient is 1.5 times the usual one, not 0."""
    logp = torch.tensor([[-0.5, -0.5]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[-0.9, -0.5]], dtype=torch.float64)
    gradients = []
    for active in ({}, {"casp": {"lambda_top1": 1.5, "tau": 0.0}}):
        loss = policy_loss(
            logp, torch.tensor([-1.0]).double(), torch.ones(1, 2), old_logp=old, transforms=chain(active),
            entropy=torch.tensor([[2.0, 1.0]]).double(), is_top1=torch.ones(1, 2, dtype=torch.bool),
            top_logps=logp.unsqueeze(2).expand(1, 2, 3),
        ).loss  # fmt: skip
        gradients.append(torch.autograd.grad(loss, logp)[0])

    assert gradients[1][0, 0] == pytest.approx(1.5 * gradients[0][0, 0].item())
    assert gradients[0][0, 0] != 0
    assert torch.equal(gradients[0][0, 1], gradients[1][0, 1])


def test_casp_without_gradients_on_the_candidates_is_refused():
    batch = Batch(0).forward()
    batch.top = batch.top.detach()

    with pytest.raises(ValueError, match="nothing would reach the candidates"):
        batch.loss({"casp": {}})
    with pytest.raises(ValueError, match="only 4 are measured"):
        batch.loss({"casp": {"num_candidates": 5}})


@SEEDS
def test_iac_scales_positive_advantages_by_how_many_failed(seed):
    batch = Batch(seed).forward()

    def advantage(i, t):
        a = batch.advantages[i]
        failed = sum(float(batch.advantages[j]) <= 0 for j in range(B) if batch.groups[j] == batch.groups[i])
        return a * failed**1.5 if a > 0 else a

    same(batch, batch.loss({"iac": {"alpha": 1.5}}).loss, surrogate(batch, advantage=advantage))


def z_scores(batch):
    x = [
        -sum(batch.old[i, t].item() for t in range(T) if batch.mask[i, t]) / batch.mask[i].sum().item()
        for i in range(B)
    ]
    found = []
    for i in range(B):
        group = [x[j] for j in range(B) if batch.groups[j] == batch.groups[i]]
        mean = sum(group) / len(group)
        found.append((x[i] - mean) / math.sqrt(sum((v - mean) ** 2 for v in group) / len(group)))
    return found


@SEEDS
@pytest.mark.parametrize("alpha", [0.01, 0.5, 5.0])
def test_ppl_shaping_never_turns_an_advantage(seed, alpha):
    batch = Batch(seed).forward()
    z = z_scores(batch)

    result = batch.loss({"ppl_shaping": {"alpha": alpha}})

    same(batch, result.loss, surrogate(batch, advantage=lambda i, t: batch.advantages[i] * max(0.0, 1 - alpha * z[i])))
    assert result.counts["ppl_shaping_stopped"] == sum(alpha * v > 1 for v in z)


def test_ppl_shaping_of_equal_responses_changes_nothing():
    batch = Batch(0).forward()
    for name in ("logp", "old", "entropy"):
        setattr(batch, name, getattr(batch, name)[:1].expand(B, T))
    batch.mask = batch.mask[:1].expand(B, T)

    assert batch.loss({"ppl_shaping": {"alpha": 9.0}}).loss == batch.loss({}).loss


@SEEDS
def test_position_shaping_is_a_step_in_the_middle_of_each_response(seed):
    batch = Batch(seed).forward()

    def advantage(i, t):
        a = batch.advantages[i]
        relative = t / batch.mask[i].sum().item()
        return a + a.sign() * 0.4 / (1 + math.exp(-15 * (relative - 0.5)))

    same(batch, batch.loss({"position_shaping": {"gamma": 0.4}}).loss, surrogate(batch, advantage=advantage))
    assert abs(advantage(0, 0) - batch.advantages[0]) < 0.01 * 0.4  # as printed in the paper it would be 0.4 everywhere


@SEEDS
def test_entropy_advantage_is_bounded_by_the_advantage(seed):
    batch = Batch(seed).forward()

    def advantage(i, t):
        a = batch.advantages[i]
        return a + torch.minimum(0.4 * batch.entropy[i, t].detach(), a.abs() / 2)

    same(batch, batch.loss({"entropy_advantage": {}}).loss, surrogate(batch, advantage=advantage))


@SEEDS
def test_forking_tokens_alone_are_trained_on(seed):
    batch = Batch(seed).forward()
    entropy = {k: batch.entropy[k].item() for k in batch.tokens()}
    kept = top(entropy, int(0.2 * len(entropy)))

    loss = batch.loss({"forking_tokens": {}}).loss

    same(batch, loss, surrogate(batch, weight=lambda i, t: float((i, t) in kept)))


@pytest.mark.parametrize(
    ("active", "change"),
    [
        ({"psr": {}}, lambda a: max(a, 0.0)),
        ({"nsr": {}}, lambda a: min(a, 0.0)),
        ({"w_reinforce": {"w": 0.3}}, lambda a: 0.3 * a if a > 0 else a),
    ],
)
def test_the_sign_decides_what_is_learned_from(active, change):
    batch = Batch(2).forward()

    same(
        batch,
        batch.loss(active).loss,
        surrogate(batch, advantage=lambda i, t: torch.tensor(change(batch.advantages[i].item()), dtype=torch.float64)),
    )


@SEEDS
@pytest.mark.parametrize("strategy", ["uniform", "positive_adv", "forking", "fork_adv", "non_forking", "kl_cov"])
def test_selective_kl_holds_the_right_kind_and_number_of_tokens(seed, strategy):
    batch = Batch(seed).forward()
    entropy, cov = {k: batch.entropy[k].item() for k in batch.tokens()}, covariances(batch)
    number = int(0.2 * len(cov))
    positive = {k for k in cov if batch.advantages[k[0]] > 0}
    allowed = {
        "uniform": set(cov), "positive_adv": positive, "forking": top(entropy, number),
        "fork_adv": top({k: entropy[k] for k in positive}, number), "kl_cov": top(cov, number),
        "non_forking": set(cov) - top(entropy, int(0.2 * len(cov))),
    }[strategy]  # fmt: skip

    result = batch.loss({"selective_kl": {"strategy": strategy, "q": 0.2, "lam": 2.0}})

    gradient = torch.autograd.grad(result.loss - batch.loss({}).loss, batch.divergence, retain_graph=True)[0]
    held = {k for k in cov if gradient[k] != 0}
    assert held <= allowed
    assert len(held) == min(number, len(allowed)) == result.counts["selective_kl_tokens"]
    expected = surrogate(batch) + 2.0 * sum(batch.divergence[k] for k in held) / (len(held) + 1e-8)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-10)


def test_methods_that_shape_and_select_work_together_on_the_values_they_should():
    """IAC after PSR still counts the group's failures: its signs are those from before any shaping."""
    batch = Batch(3).forward()

    def advantage(i, t):
        a = max(batch.advantages[i].item(), 0.0)
        failed = sum(float(batch.advantages[j]) <= 0 for j in range(B) if batch.groups[j] == batch.groups[i])
        return torch.tensor(a * failed, dtype=torch.float64)

    same(batch, batch.loss({"psr": {}, "iac": {}}).loss, surrogate(batch, advantage=advantage))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_junk_on_padding_reaches_no_method(seed):
    clean = Batch(seed).forward()
    names = {
        "scope": {"q": 0.3},
        "kl_cov": {"k": 0.1},
        "casp": {},
        "iac": {},
        "ppl_shaping": {},
        "position_shaping": {},
    }
    wanted = clean.loss(names).loss
    spoilt = Batch(seed).forward()
    padding = spoilt.mask == 0
    for name in ("old", "entropy"):
        setattr(spoilt, name, getattr(spoilt, name).masked_fill(padding, float("nan")))
    spoilt.divergence = spoilt.divergence.masked_fill(padding, float("nan"))
    spoilt.kl = lambda rows: spoilt.divergence.reshape(-1)[rows]

    assert spoilt.loss(names).loss.item() == pytest.approx(wanted.item(), rel=1e-12)


def test_what_cannot_be_combined_is_refused_with_the_reason():
    for one, other in (("kl_cov", "clip_cov"), ("scope", "selective_kl"), ("psr", "nsr"), ("w_reinforce", "nsr")):
        with pytest.raises(ValueError, match="cannot be combined"):
            chain({one: {}, other: {}})
    with pytest.raises(ValidationError, match="w_low"):
        chain({"clip_cov": {"w_low": 5.0, "w_high": 1.0}})


def test_rewards_from_the_policy_itself():
    values = torch.tensor([[1.0, 2.0, float("nan")], [4.0, float("nan"), float("nan")]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])

    assert rewards.self_certainty(values, mask).tolist() == [1.5, 4.0]
    assert rewards.token_entropy(values, mask).tolist() == [-1.5, -4.0]
    assert rewards.trajectory_entropy(values, mask, max_length=4).tolist() == [-0.75, -1.0]


def test_clip_cov_by_threshold_leaves_out_what_reaches_it_and_nothing_else():
    batch = Batch(3).forward()
    whole = dict(w_low=-50.0, w_high=50.0, seed=4)

    none = batch.loss({"clip_cov": {**whole, "threshold": 1.0}})
    half = batch.loss({"clip_cov": {**whole, "threshold": 0.5}})
    every = batch.loss({"clip_cov": {**whole, "threshold": 0.0}})

    plain, valid = batch.loss({}), int(batch.mask.sum())
    assert float(none.loss) == float(plain.loss)  # small batches need not leave out at least one
    assert int(none.counts["clip_cov_tokens"]) == 0
    assert 0 < int(half.counts["clip_cov_tokens"]) < int(every.counts["clip_cov_tokens"]) <= valid
