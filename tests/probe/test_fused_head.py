"""The head as one op: the reference's statistics, and the gradients of float64 autograd on full logits."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from entrostat.probe.fused_head import DIFFERENTIABLE, fused_head
from entrostat.probe.kernels.choice import Kernel
from entrostat.probe.token_stats import TokenStats, from_hidden

NAMES = tuple(TokenStats.__dataclass_fields__)
TILES = {"row_tile": 4, "vocab_tile": 24}
TRANSFORMS = [
    {}, {"temperature": 0.7}, {"softcap": 4.0}, {"logit_scale": 0.3},
    {"temperature": 1.4, "softcap": 3.0, "logit_scale": 1.6},
]  # fmt: skip


@dataclasses.dataclass
class Case:
    """Float64 inputs of one head and what the loss makes of its outputs."""

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    labels: torch.Tensor
    weights: dict[str, torch.Tensor]


def drawn(rows=9, vocab=61, width=7, n=5, seed=0, has_bias=True, ignored=()):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.randint(vocab, (rows,), generator=generator)
    labels[list(ignored)] = -100
    weights = {name: normal(rows, n) if name == "top_logps" else normal(rows) for name in DIFFERENTIABLE}
    return Case(normal(rows, width), normal(vocab, width), normal(vocab) if has_bias else None, labels, weights)


def leaf(tensor, dtype):
    return None if tensor is None else tensor.to(dtype).detach().requires_grad_()


def gradients_of(case, weights, transform, dtype=torch.float64, op=None, **options):
    """Gradients of hidden, weight and bias for the loss sum(weights * output), through ``op`` or full logits."""
    inputs = [leaf(x, dtype) for x in (case.hidden, case.weight, case.bias)]
    hidden, weight, bias = inputs
    n = case.weights["top_logps"].shape[1]
    if op is None:
        stats = by_definition(hidden, weight, bias, case.labels, n, **transform)
    else:
        found = op(hidden, weight, case.labels, bias=bias, n=n, **TILES | options, **transform)
        stats = {name: getattr(found, name) for name in DIFFERENTIABLE}
    loss = sum((weights[k].to(stats[k].dtype) * stats[k].nan_to_num(0.0, neginf=0.0)).sum() for k in weights)
    present = [x for x in inputs if x is not None]
    return torch.autograd.grad(loss, present, allow_unused=True)


def by_definition(hidden, weight, bias, labels, n, temperature=1.0, softcap=None, logit_scale=1.0):
    """The statistics from the whole softmax; ignored rows are 0. A column masked by -inf has no part in them."""
    kept = torch.ones(weight.shape[0], dtype=torch.bool) if bias is None else bias.isfinite()
    z = hidden @ weight.T
    if bias is not None:
        z = z + bias.masked_fill(~kept, 0.0)
    z = z * logit_scale
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    heat = temperature.unsqueeze(1) if isinstance(temperature, torch.Tensor) else temperature
    z = (z / heat).masked_fill(~kept, -1e30)
    logps = z.log_softmax(1)
    finite = logps[:, kept]
    p = finite.exp()
    ids = logps.detach().sort(dim=1, descending=True, stable=True).indices[:, :n]
    stats = {
        "logp": logps.gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1),
        "entropy": -(p * finite).sum(1),
        "logsumexp": z.logsumexp(1),
        "top_logps": logps.gather(1, ids),
        "sum_p2": (p * p).sum(1),
        "self_certainty": -finite.mean(1) - torch.tensor(float(kept.sum())).log(),
    }
    counts = (labels >= 0).to(z.dtype)
    return {k: v * (counts if v.ndim == 1 else counts.unsqueeze(1)) for k, v in stats.items()}


def worst(found, expected):
    """Largest error relative to the largest entry of each gradient."""
    return max(
        ((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-30)).item()
        for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("name", [*DIFFERENTIABLE, "all"])
def test_the_gradient_through_each_output_is_autograds(name, transform):
    case = drawn(ignored=(2, 5))
    weights = case.weights if name == "all" else {name: case.weights[name]}

    found = gradients_of(case, weights, transform, op=fused_head)

    assert worst(found, gradients_of(case, weights, transform)) < 1e-12


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9), st.integers(6, 70), st.integers(1, 6), st.integers(0, 10**6), st.booleans(),
    st.sampled_from(TRANSFORMS), st.sets(st.sampled_from(DIFFERENTIABLE), min_size=1), st.integers(1, 30),
)  # fmt: skip
def test_odd_shapes_and_tiles_change_nothing(rows, vocab, n, seed, has_bias, transform, names, vocab_tile):
    case = drawn(rows, vocab, 4, n, seed, has_bias, ignored=range(1, rows, 3))
    weights = {k: case.weights[k] for k in sorted(names)}

    found = gradients_of(case, weights, transform, op=fused_head, vocab_tile=vocab_tile)

    assert worst(found, gradients_of(case, weights, transform)) < 1e-10


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_masked_candidate_takes_no_gradient_and_spoils_none(name):
    case = drawn(seed=3)
    case.bias[10:45] = -torch.inf
    case.labels[:] = torch.arange(len(case.labels))  # none of them masked
    weights = {name: case.weights[name]}

    found = gradients_of(case, weights, {}, op=fused_head)

    assert worst(found, gradients_of(case, weights, {})) < 1e-12
    assert found[1][10:45].abs().max() == 0


def test_a_temperature_for_each_row():
    case = drawn()
    transform = {"temperature": torch.linspace(0.5, 2.0, 9, dtype=torch.float64)}

    found = gradients_of(case, case.weights, transform, op=fused_head)

    assert worst(found, gradients_of(case, case.weights, transform)) < 1e-12


def test_one_candidate_alone_moves_its_own_logit_up_and_all_by_their_probability_down():
    case = drawn(rows=1, has_bias=True)
    pick = torch.zeros_like(case.weights["top_logps"])
    pick[0, 3] = 1.0

    bias = leaf(case.bias, torch.float64)
    stats = fused_head(case.hidden, case.weight, case.labels, bias=bias, n=5, **TILES)
    (gradient,) = torch.autograd.grad((stats.top_logps * pick).sum(), [bias])

    expected = -(case.hidden @ case.weight.T + case.bias).softmax(1)[0]
    expected[stats.top_ids[0, 3]] += 1.0
    assert gradient == pytest.approx(expected.numpy(), abs=1e-14)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_float32_gradients_are_those_of_float64(transform):
    case = drawn(rows=12, vocab=500, width=32)
    case.hidden *= 0.4  # near the soft-cap, 1 - tanh^2 has few digits in float32, whoever computes it

    found = gradients_of(case, case.weights, transform, torch.float32, op=fused_head)

    assert worst(found, gradients_of(case, case.weights, transform)) < 1e-5


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
def test_bfloat16_products_are_within_their_rounding(weight_dtype):
    # A product of 32 terms of size 1 rounds to 2^-9 of some 6: each logit is off by about 0.01, and so is each p.
    case = drawn(rows=12, vocab=300, width=32, has_bias=False)
    case.weight *= 0.3
    hidden, weight = leaf(case.hidden, torch.bfloat16), leaf(case.weight, weight_dtype)
    stats = fused_head(hidden, weight, case.labels, n=5, dtype=torch.bfloat16, **TILES)
    loss = (stats.logp * case.weights["logp"].float()).sum() + (stats.entropy * case.weights["entropy"].float()).sum()
    found = torch.autograd.grad(loss, [hidden, weight])

    exact = dataclasses.replace(case, hidden=hidden.detach().double(), weight=weight.detach().double())
    expected = gradients_of(exact, {k: case.weights[k] for k in ("logp", "entropy")}, {})
    assert [g.dtype for g in found] == [torch.bfloat16, weight_dtype]
    assert stats.logp.dtype == torch.float32
    assert worst(found, expected) < 0.02


def test_shares_of_tiles_are_added_up_in_float32():
    # 512 equal rows, a row a tile: each share is 1/256 of the sum at the end, and bfloat16 would lose every one.
    hidden = torch.ones(512, 4, dtype=torch.bfloat16)
    weight = torch.zeros(8, 4, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.zeros(8, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.zeros(512, dtype=torch.int64)

    fused_head(hidden, weight, labels, bias=bias, n=3, row_tile=1).logp.sum().backward()

    assert weight.grad[0].tolist() == [512 * 7 / 8] * 4
    assert bias.grad[0] == 512 * 7 / 8


def test_statistics_are_those_of_the_reference():
    case = drawn(ignored=(4,))
    hidden, weight = leaf(case.hidden, torch.float32), leaf(case.weight, torch.float32)

    found = fused_head(hidden, weight, case.labels, n=5, temperature=0.8, **TILES)
    expected = from_hidden(hidden, weight, case.labels, n=5, temperature=0.8, **TILES)

    for name in NAMES:
        assert torch.equal(getattr(found, name).nan_to_num(-7), getattr(expected, name).nan_to_num(-7)), name
        assert getattr(found, name).requires_grad == (name in DIFFERENTIABLE), name


def test_rows_without_gradient_have_no_product():
    case = drawn(rows=40, ignored=(3,))
    hidden, weight = leaf(case.hidden, torch.float32), leaf(case.weight, torch.float32)
    stats = fused_head(hidden, weight, case.labels, n=5, row_tile=100, vocab_tile=100)
    advantages = torch.zeros(40)
    advantages[[7, 30]] = torch.tensor([1.0, -2.0])

    with Sizes() as sizes:
        (stats.logp.nan_to_num() * advantages).sum().backward()

    assert (61, 2) in sizes.products or (2, 61) in sizes.products
    assert all(40 not in shape for shape in sizes.products)
    assert hidden.grad.abs().sum(1).nonzero().squeeze(1).tolist() == [7, 30]


def test_on_a_gpu_triton_takes_heads_in_the_dtype_of_the_products(monkeypatch):
    backward = pytest.importorskip("entrostat.probe.kernels.backward", reason="Triton is part of the dev extra")
    case, asked = drawn(), []
    monkeypatch.setattr("entrostat.probe.fused_head.chosen", lambda *_: Kernel.TRITON)
    monkeypatch.setattr(backward, "from_hidden", lambda *args, **kwargs: asked.append((args, kwargs)))

    fused_head(case.hidden.bfloat16(), case.weight.bfloat16(), case.labels, temperature=0.7, n=5, **TILES)
    own = fused_head(case.hidden, case.weight, case.labels, dtype=torch.float32, n=5)

    ((args, kwargs),) = asked
    assert [x.dtype for x in args] == [torch.bfloat16, torch.bfloat16, torch.int64]
    assert kwargs == TILES | {"bias": None, "temperature": 0.7, "softcap": None, "logit_scale": None, "n": 5}
    assert own.logp.dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: its CPU twin holds the formulas")
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
def test_on_a_gpu_gradients_are_those_of_the_cpu(weight_dtype):
    case = drawn(rows=40, vocab=5000, width=64)
    case.weight *= 0.2
    found = {}
    for device in ("cpu", "cuda"):
        hidden = leaf(case.hidden.to(device), torch.bfloat16)
        weight = leaf(case.weight.to(device), weight_dtype)
        stats = fused_head(hidden, weight, case.labels.to(device), n=5, dtype=torch.bfloat16)
        loss = sum((case.weights[k].to(device).float() * getattr(stats, k)).sum() for k in DIFFERENTIABLE)
        found[device] = [g.cpu() for g in torch.autograd.grad(loss, [hidden, weight])]

    assert worst(found["cuda"], found["cpu"]) < 0.02


def test_where_fewer_candidates_are_finite_than_are_kept_the_rest_take_no_gradient():
    case = drawn(rows=3, vocab=10, seed=1)
    case.bias[3:] = -torch.inf
    case.labels[:] = torch.arange(3)
    bias = leaf(case.bias, torch.float64)

    stats = fused_head(case.hidden, case.weight, case.labels, bias=bias, n=5, **TILES)
    (gradient,) = torch.autograd.grad(stats.top_logps, [bias], torch.ones(3, 5, dtype=torch.float64))

    p = (case.hidden @ case.weight[:3].T + case.bias[:3]).softmax(1)
    assert stats.top_ids[:, 3:].eq(-1).all()
    assert gradient[:3] == pytest.approx((1 - 3 * p).sum(0).numpy(), abs=1e-14)
    assert gradient[3:].abs().max() == 0


def test_what_an_ignored_row_is_told_goes_nowhere():
    case = drawn(ignored=(1,))
    found = gradients_of(case, case.weights, {}, op=lambda *a, **k: _told_nan(fused_head(*a, **k)))

    assert worst(found, gradients_of(case, case.weights, {})) < 1e-12


def _told_nan(stats):
    def tell(gradient):
        gradient = gradient.clone()
        gradient[1] = torch.nan
        return gradient

    for name in DIFFERENTIABLE:
        getattr(stats, name).register_hook(tell)
    return stats


def test_only_gradients_that_are_needed_are_made():
    case = drawn()
    hidden = leaf(case.hidden, torch.float32)

    with Sizes() as sizes:
        stats = fused_head(hidden, case.weight.float(), case.labels, bias=case.bias.float(), n=5, **TILES)
        stats.entropy.sum().backward()

    # Forward, forward again in the backward, and the gradient of hidden: no [V, d] among the results.
    assert all(shape[0] != 24 for shape in sizes.products)
    assert hidden.grad is not None
    without = fused_head(hidden.detach(), case.weight.float(), case.labels, n=5)
    assert not any(getattr(without, name).requires_grad for name in NAMES)


def test_a_step_in_which_nothing_has_a_gradient_gives_zeros():
    case = drawn()
    hidden, weight = leaf(case.hidden, torch.float32), leaf(case.weight, torch.float32)

    (fused_head(hidden, weight, case.labels, n=5).logp * 0.0).sum().backward()

    assert hidden.grad.abs().max() == weight.grad.abs().max() == 0


def test_no_logits_in_full_forward_or_backward_and_none_saved():
    rows, vocab, width = 64, 4096, 8
    case = drawn(rows, vocab, width, has_bias=False)
    hidden, weight = leaf(case.hidden, torch.float32), leaf(case.weight, torch.float32)
    saved = []

    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t):
        with Sizes() as forward:
            stats = fused_head(hidden, weight, case.labels, n=5, row_tile=16, vocab_tile=256)
        loss = sum((case.weights[k].float() * getattr(stats, k)).sum() for k in DIFFERENTIABLE)
    with Sizes() as backward:
        loss.backward()

    tile, head, states = 16 * 256, vocab * width, rows * width
    assert max(forward.new) <= max(tile, states)
    # Beside the gradients themselves, nothing is larger than a tile.
    assert sorted(size for size in backward.new if size > max(tile, states)) == [head]
    assert max(size for size in saved if size != head) <= states


class Sizes(TorchDispatchMode):
    """The numbers of elements of every tensor that is newly made, and the shapes of matrix products."""

    def __init__(self):
        super().__init__()
        self.new, self.products = [0], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        known = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        out = function(*args, **kwargs or {})
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in known:
                self.new.append(x.numel())
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_, torch.ops.aten.addmm):
            self.products.append(tuple(out.shape))
        return out
