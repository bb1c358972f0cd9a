"""The policy loss against a loop over tokens, and by autograd; the methods through the same laws."""

import math
from dataclasses import replace
from typing import Literal, get_origin

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from entrostat.interventions.chain import chain, in_order
from entrostat.interventions.methods import BY_NAME, METHODS
from entrostat.interventions.policy_loss import policy_loss
from entrostat.interventions.transform import Phase, Transform


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
            r = math.exp(float(seen["logp"][i, t].detach() - seen["old_logp"][i, t]))
            a = float(seen["advantages"][i])
            values.append(-min(r * a, min(max(r, 1 - low), 1 + high) * a) - c * float(seen["entropy"][i, t].detach()))
        by_response.append(values)
    flat = [v for values in by_response for v in values]
    if aggregation == "token":
        return sum(flat) / len(flat)
    return sum(sum(v) / len(v) for v in by_response) / len(by_response)


def everything(seen):
    """The inputs that one method or another needs."""
    b = len(seen["mask"])
    return {
        "top_logps": (seen["logp"].unsqueeze(2) - torch.arange(3)), "is_top1": seen["mask"] != 0,
        "rewards": torch.ones(b), "groups": torch.zeros(b), "reference_kl": lambda rows: torch.ones(len(rows)),
    }  # fmt: skip


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
    share = -(seen["advantages"].unsqueeze(1) * seen["mask"]) / seen["mask"].sum()
    assert result.loss.item() == pytest.approx(share.sum().item())
    # The ratio is 1 and its gradient is not 0: REINFORCE.
    result.loss.backward()
    assert torch.allclose(seen["logp"].grad, share)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500))
def test_clip_fractions_count_what_the_loss_holds_back(seed):
    seen = batch(seed)
    result = ours(seen)
    ratio, a = (seen["logp"] - seen["old_logp"]).exp(), seen["advantages"].unsqueeze(1)
    valid = seen["mask"] != 0

    assert result.clip_fraction_high.item() == pytest.approx(((ratio > 1.2) & (a > 0) & valid).sum() / valid.sum())
    assert result.clip_fraction_low.item() == pytest.approx(((ratio < 0.8) & (a < 0) & valid).sum() / valid.sum())


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -1e9])
@pytest.mark.parametrize("name", ["logp", "old_logp", "advantages", "entropy"])
def test_junk_on_padding_reaches_neither_loss_nor_gradient(name, junk):
    clean = batch(3)
    assert (clean["mask"] == 0).any()
    spoilt = dict(clean)
    spoilt["advantages"] = clean["advantages"].unsqueeze(1).expand(clean["mask"].shape)
    spoilt[name] = spoilt[name].detach().masked_fill(clean["mask"] == 0, junk)
    for seen in (clean, spoilt):
        for key in ("logp", "entropy"):
            seen[key] = seen[key].detach().requires_grad_()

    losses = [ours(seen, transforms=chain({"entropy_bonus": {}})).loss for seen in (clean, spoilt)]
    gradients = [
        torch.autograd.grad(loss, (seen["logp"], seen["entropy"]))
        for loss, seen in zip(losses, (clean, spoilt), strict=True)
    ]

    assert torch.equal(*losses)
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_a_method_sees_zeros_on_padding_whatever_was_given():
    seen = batch(3)
    empty = seen["mask"] == 0
    junk = torch.zeros(3, 5, dtype=torch.float64).masked_fill(empty, float("nan"))
    fields = ("logp", "log_ratio", "advantage", "original_advantage", "entropy", "top_logps")

    def look(tokens, state):
        assert all(getattr(tokens, name)[empty].eq(0).all() for name in fields)
        return tokens, "looked"

    result = policy_loss(
        junk, junk, seen["mask"], old_logp=junk, entropy=junk,
        top_logps=junk.unsqueeze(2).expand(3, 5, 4), transforms=[Transform("look", Phase.advantage, look)],
    )  # fmt: skip
    assert result.states == {"look": "looked"}


def test_junk_on_a_response_token_is_not_hidden():
    seen = batch(3)
    seen["old_logp"][0, 0] = float("nan")

    assert ours(seen).loss.isnan()


def test_the_four_ways_in_which_trl_averages():
    """TRL 1.16's grpo, bnpo, dr_grpo and dapo, written as its trainer does, with autograd."""
    seen = batch(6, b=4, t=7)
    mask = seen["mask"].double()
    coef_1 = torch.exp(seen["logp"] - seen["old_logp"])
    coef_2 = torch.clamp(coef_1, 0.8, 1.28)
    a = seen["advantages"].unsqueeze(1)
    per_token = -torch.min(coef_1 * a, coef_2 * a) * mask
    trl = {
        ("response", None): (per_token.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean(),
        ("token", None): per_token.sum() / mask.sum().clamp(min=1.0),
        ("fixed", 4 * 10): per_token.sum() / (per_token.size(0) * 10),
        ("fixed", torch.tensor(123.0)): per_token.sum() / 123.0,
    }

    for (aggregation, normaliser), expected in trl.items():
        loss = ours(seen, eps_high=0.28, aggregation=aggregation, normaliser=normaliser).loss
        ours_grad, trl_grad = (torch.autograd.grad(x, seen["logp"], retain_graph=True)[0] for x in (loss, expected))
        assert torch.allclose(loss, expected, rtol=1e-14)
        assert torch.allclose(ours_grad, trl_grad, atol=1e-15)


def test_a_response_without_tokens_counts_as_nothing():
    seen = batch(7)
    seen["mask"][1] = 0
    kept = {k: v[[0, 2]] for k, v in seen.items()}

    assert ours(seen).loss.item() == pytest.approx(ours(kept).loss.item())
    assert ours(seen, aggregation="response").loss.item() == pytest.approx(
        ours(kept, aggregation="response").loss.item() * 2 / 3
    )
    seen["mask"][:] = 0
    assert ours(seen).loss.item() == 0


def test_the_ratio_is_given_back_without_gradient():
    seen = batch(8)
    ratio = ours(seen).ratio

    assert not ratio.requires_grad
    valid = seen["mask"] != 0
    assert torch.allclose(ratio[valid], (seen["logp"] - seen["old_logp"]).exp()[valid].detach())
    assert ratio[~valid].eq(1).all()


def test_advantages_may_differ_by_token():
    seen = batch(9)
    spread = seen | {"advantages": seen["advantages"].unsqueeze(1).expand(seen["mask"].shape)}

    assert torch.equal(ours(seen).loss, ours(spread).loss)


def test_states_come_back_and_the_phases_fit_every_kind_of_method():
    """A method in each phase, reading what the published ones will read, with a state that counts its calls."""

    def method(phase, needs, change):
        def apply(tokens, state):
            called.append(phase)
            assert all(getattr(tokens, name) is not None for name in needs)
            return tokens.with_(**change(tokens)), (state or 0) + 1

        return Transform(phase.value, phase, apply, needs)

    def half(tokens):
        return {"weight": tokens.weight * (torch.arange(5) < 2)}

    def kl(tokens):
        return {"penalty": tokens.penalty + tokens.reference_kl(torch.arange(15)).view(3, 5)}

    seen, called = batch(10), []
    made = [
        method(Phase.penalty, ("reference_kl",), kl),
        method(Phase.token_mask, ("entropy",), half),
        method(Phase.ratio, ("top_logps", "is_top1"), lambda t: {"log_ratio": t.log_ratio + math.log(1.1)}),
        method(Phase.advantage, ("rewards", "groups"), lambda t: {"advantage": 2 * t.advantage}),
    ]
    extra = {
        "top_logps": torch.zeros(3, 5, 2), "is_top1": seen["mask"] != 0, "rewards": torch.ones(3),
        "groups": torch.zeros(3), "reference_kl": lambda rows: torch.full((len(rows),), 0.25),
    }  # fmt: skip
    first = ours(seen, transforms=made, **extra)
    assert called == [Phase.advantage, Phase.ratio, Phase.token_mask, Phase.penalty]
    second = ours(seen, transforms=made, states=first.states, **extra)

    assert set(second.states.values()) == {2}
    expected = []
    for i in range(3):
        for t in range(5):
            if seen["mask"][i, t]:
                r, a = (
                    1.1 * math.exp(float(seen["logp"][i, t].detach() - seen["old_logp"][i, t])),
                    2 * float(seen["advantages"][i]),
                )
                expected.append(0.25 - (min(r * a, min(max(r, 0.8), 1.2) * a) if t < 2 else 0.0))
    assert first.loss.item() == pytest.approx(sum(expected) / len(expected), rel=1e-12)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_method_changes_nothing_it_was_given(method):
    seen = batch(4)
    before = {k: v.detach().clone() for k, v in seen.items()}

    ours(seen, transforms=[method.make(method.params())], **everything(seen))

    assert all(torch.equal(before[k], seen[k].detach()) for k in seen)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_method_is_documented_and_bounded(method):
    assert method.source
    assert method.make.__doc__
    assert method.params.__doc__
    for field in method.params.model_fields.values():
        is_choice = field.annotation is bool or get_origin(field.annotation) is Literal
        assert field.description
        assert is_choice or field.metadata, "a number needs bounds"
    with pytest.raises(ValidationError, match="extra"):
        method.params(no_such_parameter=1)


def test_phases_are_applied_in_order_whatever_the_order_given():
    made = in_order([m.make(m.params()) for m in reversed(METHODS)])

    order = list(Phase)
    assert [order.index(t.phase) for t in made] == sorted(order.index(m.phase) for m in METHODS)


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
    with pytest.raises(ValueError, match="'fixed' with normaliser None"):
        ours(seen, aggregation="fixed")
    with pytest.raises(ValueError, match="'token' with normaliser 3"):
        ours(seen, normaliser=3)
    with pytest.raises(ValueError, match=r"old_logp \(3, 1\) and mask \(3, 5\)"):
        ours(seen | {"old_logp": seen["old_logp"][:, :1]})
    with pytest.raises(ValueError, match="advantages"):
        policy_loss(seen["logp"], seen["advantages"][:2], seen["mask"])


def test_methods_that_exclude_each_other_are_refused_with_the_reason_whichever_comes_first(monkeypatch):
    strict = replace(BY_NAME["clip_higher"], excludes={"entropy_bonus": "both push the same token"})
    monkeypatch.setitem(BY_NAME, "clip_higher", strict)

    for names in (("clip_higher", "entropy_bonus"), ("entropy_bonus", "clip_higher")):
        with pytest.raises(ValueError, match="both push the same token"):
            chain({name: {} for name in names})
