"""The statistics' gradients against float64 autograd through their formulas, in Triton's interpreter."""

import pytest
import torch
from support import kernel_cases as cases

from entrostat.probe.kernels import backward, triton_stats
from entrostat.probe.kernels.layout import Layout

SMALL = Layout(block=32, sub=8, part_blocks=2, num_warps=1, top_warps=1)
FIELDS = ("logp", "entropy", "logsumexp", "top_logps", "sum_p2", "self_certainty")


def formulas(logits, labels, top_ids, temperature=1.0, softcap=None, logit_scale=1.0):
    """The fields in float64, plainly, for rows without NaN; a masked candidate is left out."""
    z = logits * logit_scale
    is_finite = z.isfinite()
    z = torch.where(is_finite, z, 0.0)
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    z = z / (temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature)
    logsumexp = z.masked_fill(~is_finite, -torch.inf).logsumexp(1)
    log_p = torch.where(is_finite, z - logsumexp[:, None], 0.0)
    p = torch.where(is_finite, log_p.exp(), 0.0)
    return {
        "logp": log_p.gather(1, labels[:, None])[:, 0],
        "entropy": -(p * log_p).sum(1),
        "logsumexp": logsumexp,
        "top_logps": torch.where(top_ids >= 0, log_p.gather(1, top_ids.clamp(min=0)), 0.0),
        "sum_p2": p.square().sum(1),
        "self_certainty": -(log_p.sum(1) / is_finite.sum(1)) - is_finite.sum(1).double().log(),
    }


def weighted(values, weights):
    return sum((values[name].double() * weights[name]).nan_to_num(0, 0, 0).sum() for name in weights)


def weights_of(rows, n, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn((rows, n) if name == "top_logps" else (rows,), generator=generator, dtype=torch.float64)
        for name in FIELDS
    }


def as_dict(stats):
    return {name: getattr(stats, name) for name in FIELDS}


TRANSFORMS = [{}, {"temperature": 0.7}, cases.SOFT_CAP, {"logit_scale": 0.25}]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("fields", [*((name,) for name in FIELDS), FIELDS], ids="+".join)
def test_the_gradient_of_the_logits_is_that_of_the_formulas(fields, transform):
    logits, labels = cases.drawn(4, 150, 30)
    logits, weights = logits.requires_grad_(), weights_of(4, 5)
    weights = {name: weights[name] for name in fields}
    stats = backward.from_logits(logits, labels, n=5, cut=SMALL, **transform)
    weighted(as_dict(stats), weights).backward()

    truth = logits.detach().double().requires_grad_()
    weighted(formulas(truth, labels, stats.top_ids, **transform), weights).backward()
    assert (logits.grad - truth.grad).abs().max() < 3e-6 * max(1.0, truth.grad.abs().max())


def test_the_numbers_are_those_without_a_gradient():
    logits, labels = cases.drawn(3, 150, 31, dtype=torch.bfloat16)
    stats = backward.from_logits(logits.requires_grad_(), labels, cut=SMALL)

    assert cases.different(stats, triton_stats.from_logits(logits, labels, cut=SMALL)) == []
    assert {name for name in cases.NAMES if getattr(stats, name).requires_grad} == set(FIELDS)


def test_masks_move_nothing_and_rows_that_say_nothing_get_zero():
    logits, labels = cases.drawn(7, 150, 32)
    logits[0, 100:], logits[1, 3:], logits[1, 20] = -torch.inf, -torch.inf, -torch.inf
    labels[0], labels[1] = 5, 2
    logits[2, 7], logits[3], labels[4], labels[5] = torch.nan, -torch.inf, -100, 150
    heat = torch.tensor([1.0, 0.8, 1.0, 1.0, 1.0, 1.0, 0.0])
    logits, weights = logits.requires_grad_(), weights_of(7, 8)
    stats = backward.from_logits(logits, labels, temperature=heat, cut=SMALL)
    weighted(as_dict(stats), weights).backward()

    assert logits.grad[[2, 3, 4, 6]].eq(0).all()
    assert logits.grad[0, 100:].eq(0).all()
    some = [0, 1, 5]
    truth = logits.detach()[some].double().requires_grad_()
    of_some = {name: weights[name][some].clone() for name in FIELDS}
    of_some["logp"][2] = 0.0  # a label outside the vocabulary is a constant
    labels = labels[some].clamp(max=149)
    weighted(formulas(truth, labels, stats.top_ids[some], temperature=heat[some].double()), of_some).backward()
    assert (logits.grad[some] - truth.grad).abs().max() < 3e-6 * truth.grad.abs().max()


def test_a_masked_label_is_a_constant():
    logits, labels = cases.drawn(1, 60, 33)
    logits[0, labels[0]] = -torch.inf
    logits.requires_grad_()
    backward.from_logits(logits, labels, cut=SMALL).logp.sum().backward()

    assert logits.grad.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_likely_labels_gradient_is_rounded_once(dtype):
    """1 - p at the label: -p rounded first would leave 0, or 1/256."""
    logits = torch.zeros(1, 100, dtype=dtype)
    logits[0, 40] = 11.0
    logits.requires_grad_()
    backward.from_logits(logits, torch.tensor([40]), cut=SMALL).logp.sum().backward()

    exact = 1 - torch.softmax(logits.detach().double(), 1)[0, 40]
    assert abs(logits.grad[0, 40].double() - exact) < 0.005 * exact


def test_some_rows_gradient_does_not_depend_on_the_others():
    logits, labels = cases.drawn(5, 150, 34)
    whole, part = logits.clone().requires_grad_(), logits[1:3].clone().requires_grad_()
    backward.from_logits(whole, labels, cut=SMALL).entropy.sum().backward()
    backward.from_logits(part, labels[1:3], cut=SMALL).entropy.sum().backward()

    assert torch.equal(whole.grad[1:3], part.grad)


def test_the_gradient_reaches_logits_whose_rows_or_columns_lie_apart():
    logits, labels = cases.drawn(3, 90, 35)
    truth = logits.double().requires_grad_()
    weighted(formulas(truth, labels, torch.zeros(3, 1, dtype=torch.long)), {"entropy": torch.ones(3)}).backward()
    wide = torch.cat([logits, logits], 1).requires_grad_()
    tall = logits.T.contiguous().requires_grad_()

    backward.from_logits(wide[:, 90:], labels, cut=SMALL).entropy.sum().backward()
    backward.from_logits(tall.T, labels, cut=SMALL).entropy.sum().backward()

    assert torch.allclose(wide.grad[:, 90:].double(), truth.grad, atol=1e-6)
    assert torch.allclose(tall.grad.T.double(), truth.grad, atol=1e-6)


@pytest.mark.parametrize("transform", [{}, cases.SOFT_CAP], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_hidden_states_head_and_bias_get_the_gradients_of_the_formulas(transform, has_bias):
    generator = torch.Generator().manual_seed(4)
    hidden, head, bias = (torch.randn(*size, generator=generator) for size in ((5, 12), (207, 12), (207,)))
    labels, weights = torch.tensor([0, 206, -100, 150, 100]), weights_of(5, 4)
    tensors = [hidden, head, bias] if has_bias else [hidden, head]
    ours = [t.clone().requires_grad_() for t in tensors]
    stats = backward.from_hidden(
        ours[0], ours[1], labels, bias=ours[2] if has_bias else None, row_tile=2, vocab_tile=100, n=4, cut=SMALL,
        **transform,
    )  # fmt: skip
    weighted(as_dict(stats), weights).backward()

    truth = [t.double().requires_grad_() for t in tensors]
    logits = truth[0] @ truth[1].T + (truth[2] if has_bias else 0.0)
    some = [0, 1, 3, 4]
    of_some = {name: weights[name][some] for name in FIELDS}
    weighted(formulas(logits[some], labels[some], stats.top_ids[some], **transform), of_some).backward()
    for mine, exact in zip(ours, truth):
        assert (mine.grad - exact.grad).abs().max() < 5e-6 * max(1.0, exact.grad.abs().max())


def test_the_heads_gradient_is_added_up_in_float32():
    """Of bfloat16 inputs it is rounded once: in 24 tiles of rows it is what it is in one."""
    generator = torch.Generator().manual_seed(5)
    # Quarters: their products are exact, so a tile's logits do not depend on its shape.
    hidden, head = (torch.randint(-8, 9, (size, 8), generator=generator).div(4).bfloat16() for size in (24, 60))
    labels, made = torch.randint(60, (24,), generator=generator), []
    for row_tile in (1, 24):
        weight = head.clone().requires_grad_()
        stats = backward.from_hidden(hidden, weight, labels, row_tile=row_tile, vocab_tile=32, n=2, cut=SMALL)
        stats.logp.sum().backward()
        made.append(weight.grad)

    truth = head.double().requires_grad_()
    (hidden.double() @ truth.T).log_softmax(1).gather(1, labels[:, None]).sum().backward()
    assert made[0].dtype == torch.bfloat16
    assert (made[1].double() - truth.grad).abs().max() < 2**-7 * truth.grad.abs().max()
    # Sums in another order may round to the neighbour here and there; rounded tile by tile, 73 of the 480 did.
    assert (made[0] != made[1]).sum() <= 4


def test_only_what_is_asked_for_gets_a_gradient():
    hidden, head = torch.randn(2, 4), torch.randn(40, 4, requires_grad=True)
    backward.from_hidden(hidden, head, torch.tensor([1, 2]), cut=SMALL).entropy.sum().backward()

    assert hidden.grad is None
    assert head.grad is not None


def test_rows_without_a_gradient_have_no_tile(monkeypatch):
    """Groups without a difference, and padding: half of a GRPO batch may be such."""
    generator = torch.Generator().manual_seed(6)
    hidden, head = (torch.randn(*size, generator=generator) for size in ((6, 8), (90, 8)))
    labels, heat = torch.tensor([0, 89, -100, 15, 10, 33]), torch.linspace(0.5, 1.5, 6)
    weight, tiled, plain = torch.tensor([0.0, 1.0, 3.0, 0.0, -2.0, 0.5]), [], backward.head_tile
    ours = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    stats = backward.from_hidden(*ours, labels, temperature=heat, row_tile=2, vocab_tile=50, n=3, cut=SMALL)
    monkeypatch.setattr(backward, "head_tile", lambda states, *rest: tiled.append(len(states)) or plain(states, *rest))
    (stats.logp.nan_to_num() * weight).sum().backward()

    truth = [t.double().requires_grad_() for t in (hidden, head)]
    moving = [1, 4, 5]
    log_p = (truth[0] @ truth[1].T / heat[:, None].double())[moving].log_softmax(1)
    (log_p.gather(1, labels[moving, None])[:, 0] * weight[moving]).sum().backward()
    for mine, exact in zip(ours, truth, strict=True):
        assert (mine.grad - exact.grad).abs().max() < 5e-6 * max(1.0, exact.grad.abs().max())
    assert tiled == [2, 1, 2, 1]  # of both tiles of columns
    assert (ours[0].grad[[0, 2, 3]] == 0).all()


def test_a_step_in_which_nothing_moves_costs_no_tile(monkeypatch):
    hidden, head = torch.randn(3, 4, requires_grad=True), torch.randn(40, 4, requires_grad=True)
    stats = backward.from_hidden(hidden, head, torch.tensor([1, 2, 3]), cut=SMALL)
    monkeypatch.setattr(backward, "head_tile", None)
    (stats.logp * 0.0).sum().backward()

    assert (hidden.grad == 0).all()
    assert (head.grad == 0).all()
