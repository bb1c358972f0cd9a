"""The policy loss against a loop over tokens, and by autograd; the methods through the same laws."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from entrostat.interventions.chain import chain, in_order
from entrostat.interventions.methods import METHODS
from entrostat.interventions.policy_loss import policy_loss
from entrostat.interventions.transform import Phase


def batch(seed, b=3, t=5):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, t + 1, (b,), generator=generator)
    mask = (torch.arange(t) < lengths.unsqueeze(1)).long()
    logp = (-draw(b, t).abs()).requires_grad_()
    return {
        "logp": logp, "advantages": draw(b), "mask": mask, "old_logp": (logp + 0.4 * draw(b, t)).detach(),
        "entropy": draw(b, t).abs().requires_grad_(),
    }  # fmt: skip


def by_loop(seen, low, high, aggregation="token", c=0.0):
    """PPO's clipped surrogate, a token at a time."""
    by_response = []
    for i in range(len(seen["mask"])):
        values = []
        for t in range(len(seen["mask"][i])):
            if not seen["mask"][i, t]:
                continue
            r = math.exp(seen["logp"][i, t] - seen["old_logp"][i, t])
            a = float(seen["advantages"][i])
            values.append(-min(r * a, min(max(r, 1 - low), 1 + high) * a) - c * float(seen["entropy"][i, t]))
        by_response.append(values)
    flat = [v for values in by_response for v in values]
    if aggregation == "token":
        return sum(flat) / len(flat)
    return sum(sum(v) / len(v) for v in by_response) / len(by_response)


def ours(seen, **options):
    entropy = seen["entropy"]
    return policy_loss(
        seen["logp"], seen["advantages"], seen["mask"], old_logp=seen["old_logp"], entropy=entropy, **options
    )


@pytest.mark.parametrize("aggregation", ["token", "response"])
@pytest.mark.parametrize(
    ("active", "expected"),
    [
        ({}, {"low": 0.2, "high": 0.2}),
        ({"clip_higher": {}}, {"low": 0.2, "high": 0.28}),
        ({"entropy_bonus": {"c": 0.3}}, {"low": 0.2, "high": 0.2, "c": 0.3}),
        ({"entropy_bonus": {"c": 0.3}, "clip_higher": {"eps_high": 0.5}}, {"low": 0.2, "high": 0.5, "c": 0.3}),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_the_formula_token_by_token(seed, active, expected, aggregation):
    seen = batch(seed)

    loss = ours(seen, transforms=chain(active), aggregation=aggregation).loss

    assert loss.item() == pytest.approx(by_loop(seen, aggregation=aggregation, **expected), rel=1e-12)


def test_the_gradient_of_a_token_inside_the_clip_is_its_ratio_times_its_advantage():
    seen = batch(0)
    ours(seen).loss.backward()

    ratio = (seen["logp"] - seen["old_logp"]).exp().detach()
    a = seen["advantages"].unsqueeze(1)
    is_active = torch.where(a > 0, ratio < 1.2, ratio > 0.8) & (seen["mask"] != 0)
    expected = torch.where(is_active, -ratio * a / seen["mask"].sum(), 0.0)
    assert torch.allclose(seen["logp"].grad, expected, atol=1e-14)
    assert 0 < is_active.sum() < seen["mask"].sum()


def test_the_entropy_bonus_pulls_on_the_entropy_of_valid_tokens_alone():
    seen = batch(1)
    ours(seen, transforms=chain({"entropy_bonus": {"c": 0.5}})).loss.backward()

    assert torch.allclose(seen["entropy"].grad, -0.5 * seen["mask"].double() / seen["mask"].sum())


def test_on_policy_every_ratio_is_one_and_nothing_is_clipped():
    seen = batch(2)
    result = policy_loss(seen["logp"], seen["advantages"], seen["mask"])

    assert result.clip_fraction_low == result.clip_fraction_high == 0
    expected = -(seen["advantages"].unsqueeze(1) * seen["mask"]).sum() / seen["mask"].sum()
    assert result.loss.item() == pytest.approx(expected.item())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500))
def test_clip_fractions_count_what_the_loss_holds_back(seed):
    seen = batch(seed)
    result = ours(seen)
    ratio, a = (seen["logp"] - seen["old_logp"]).exp(), seen["advantages"].unsqueeze(1)
    valid = seen["mask"] != 0

    assert result.clip_fraction_high.item() == pytest.approx(((ratio > 1.2) & (a > 0) & valid).sum() / valid.sum())
    assert result.clip_fraction_low.item() == pytest.approx(((ratio < 0.8) & (a < 0) & valid).sum() / valid.sum())


def test_nan_on_padding_reaches_neither_loss_nor_gradient():
    seen = batch(3)
    entropy = seen["entropy"].detach().masked_fill(seen["mask"] == 0, float("nan")).requires_grad_()
    result = policy_loss(
        seen["logp"], seen["advantages"], seen["mask"], old_logp=seen["old_logp"], entropy=entropy,
        transforms=chain({"entropy_bonus": {}}),
    )  # fmt: skip
    result.loss.backward()

    assert result.loss.isfinite()
    assert entropy.grad.isfinite().all()


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_method_changes_nothing_it_was_given(method):
    seen = batch(4)
    before = {k: v.detach().clone() for k, v in seen.items()}

    ours(seen, transforms=[method.make(method.params())])

    assert all(torch.equal(before[k], seen[k].detach()) for k in seen)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_method_is_documented_and_bounded(method):
    assert method.source
    assert method.make.__doc__
    assert method.params.__doc__
    assert all(field.description and field.metadata for field in method.params.model_fields.values())
    with pytest.raises(ValidationError, match="extra"):
        method.params(no_such_parameter=1)


def test_phases_are_applied_in_order_whatever_the_order_given():
    made = in_order([m.make(m.params()) for m in reversed(METHODS)])

    assert [t.phase for t in made] == [Phase.clipping, Phase.penalty]


def test_what_cannot_be_is_refused_with_the_reason():
    seen = batch(5)
    with pytest.raises(ValueError, match="unknown intervention 'nonsense'"):
        chain({"nonsense": {}})
    with pytest.raises(ValueError, match="given twice: clip_higher"):
        in_order(chain({"clip_higher": {}}) * 2)
    with pytest.raises(ValueError, match="entropy_bonus needs entropy"):
        policy_loss(seen["logp"], seen["advantages"], seen["mask"], transforms=chain({"entropy_bonus": {}}))
    with pytest.raises(ValueError, match="no gradient"):
        policy_loss(
            seen["logp"], seen["advantages"], seen["mask"], entropy=seen["entropy"].detach(),
            transforms=chain({"entropy_bonus": {}}),
        )  # fmt: skip
    with pytest.raises(ValidationError, match="c"):
        chain({"entropy_bonus": {"c": -1}})
    with pytest.raises(ValueError, match="advantages"):
        policy_loss(seen["logp"], seen["advantages"][:2], seen["mask"])
