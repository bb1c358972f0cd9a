"""TokenStats by the Triton kernels against the float64 oracle, in Triton's interpreter."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import token_stats_oracle as oracle
from support import kernel_cases as cases
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from entrostat.probe import token_stats
from entrostat.probe.kernels.layout import Layout, layout_of
from entrostat.probe.kernels.triton_stats import from_hidden, from_logits

# Blocks of 32 columns, 2 a part: a few hundred columns have parts, whole blocks and a tail.
SMALL = Layout(block=32, sub=8, part_blocks=2, num_warps=1, top_warps=1)


def test_this_is_the_interpreter():
    assert os.environ["TRITON_INTERPRET"] == "1"


@pytest.mark.parametrize("case", list(cases.cases()), ids=lambda case: case.name)
def test_every_statistic_is_its_formula(case):
    stats = from_logits(case.logits, case.labels, n=case.n, cut=SMALL, **case.transform, **case.options)

    worst = cases.errors(stats, case.logits, case.labels, case.n, **case.transform)
    assert cases.too_large(worst) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_few_thousand_columns_in_the_layout_of_a_gpu(dtype):
    logits, labels = cases.drawn(3, 20011, 20, dtype=dtype)
    stats = from_logits(logits, labels)

    assert cases.too_large(cases.errors(stats, logits, labels, 8)) == {}


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10_000), vocab=st.integers(1, 150), n=st.integers(1, 9), block=st.sampled_from([16, 64]),
    part_blocks=st.integers(1, 3), is_coarse=st.booleans(), masked=st.sampled_from([0.0, 0.3, 0.95]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_how_a_row_is_cut_up_does_not_matter(seed, vocab, n, block, part_blocks, is_coarse, masked, dtype):
    logits, labels = cases.drawn(2, vocab, seed, dtype=dtype)
    logits = logits.float().round().to(dtype) if is_coarse else logits
    hide = torch.rand(2, vocab, generator=torch.Generator().manual_seed(seed)) < masked
    logits = logits.masked_fill(hide, -torch.inf)

    stats = from_logits(logits, labels, n=n, cut=Layout(block, 4, part_blocks, 1, 1))

    assert cases.too_large(cases.errors(stats, logits, labels, n)) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bits_of_a_row_do_not_depend_on_the_batch(dtype):
    logits, labels = cases.drawn(9, 209, dtype=dtype)
    logits[3, 100:] = -torch.inf
    together = from_logits(logits, labels, cut=SMALL)

    for rows in (slice(0, 1), slice(3, 5)):
        assert cases.different(together, from_logits(logits[rows], labels[rows], cut=SMALL), rows) == []


def test_the_layout_knows_the_width_and_not_the_rows():
    for major in (8, 9, 10, 12):
        for itemsize in (2, 4):
            cut = layout_of(major, itemsize, 151936)
            assert cut.num_parts(151936) == 4
            assert cut.num_blocks(151936) == 1187
            assert cut.block % (32 * cut.num_warps * 16 // itemsize) == 0, "a thread loads 16 bytes at a time"


def test_an_offset_of_all_logits_costs_no_digits():
    # Multiples of 1/64: adding the offset is exact in float32, so the truth does not move.
    logits, labels = cases.drawn(3, 130)
    logits = (logits * 64).round() / 64
    still, moved = (from_logits(x, labels, cut=SMALL) for x in (logits, logits - 300))

    for name in cases.TOLERANCE.keys() - {"logsumexp"}:
        assert torch.allclose(getattr(still, name), getattr(moved, name), rtol=1e-6, atol=1e-6), name
    assert torch.equal(still.top_ids, moved.top_ids)


def test_masks_by_the_lowest_float_do_not_spoil_what_follows():
    logits, labels = cases.drawn(2, 90)
    logits[:, :64], labels[:] = torch.finfo(torch.float32).min, 80
    stats, short = from_logits(logits, labels, cut=SMALL), from_logits(logits[:, 64:], labels - 64, cut=SMALL)

    for name in ("entropy", "logp", "logsumexp", "sum_p2"):
        assert torch.allclose(getattr(stats, name), getattr(short, name), rtol=1e-6), name


def test_a_temperature_that_is_none_spoils_its_row_alone():
    logits, labels = cases.drawn(4, 60)
    heat = torch.tensor([1.0, 0.0, -1.0, torch.nan])
    stats, plain = (f(logits, labels, temperature=heat) for f in (from_logits, token_stats.from_logits))

    assert stats.entropy.isnan().tolist() == [False, True, True, True]
    for name in ("top_ids", "rank", "support95", "num_finite", "is_top1"):
        assert torch.equal(getattr(stats, name), getattr(plain, name)), name


def test_candidates_keep_the_order_of_raw_logits_where_the_soft_cap_rounds_them_together():
    """tanh(30) and tanh(40) are the same float; the policy's order is still that of the logits."""
    logits = torch.zeros(1, 40)
    logits[0, 3], logits[0, 30] = 150.0, 200.0
    stats = from_logits(logits, torch.tensor([3]), softcap=5.0, n=2)

    assert stats.top_ids.tolist() == [[30, 3]]
    assert stats.top_logps[0, 0] == stats.top_logps[0, 1]


@pytest.mark.parametrize("transform", [{}, cases.SOFT_CAP], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_hidden_is_from_the_logits_of_its_tiles(dtype, transform):
    generator = torch.Generator().manual_seed(1)
    hidden, head = (torch.randn(size, 24, generator=generator).to(dtype) for size in (5, 207))
    bias = torch.randn(207, generator=generator).to(dtype)
    labels = torch.tensor([0, 206, -100, 207, 100])
    tiles = [(hidden @ head[c : c + 100].T) + bias[c : c + 100] for c in range(0, 207, 100)]
    options = {"cut": SMALL, "n": 4, **transform}

    fused = from_hidden(hidden, head, labels, bias=bias, row_tile=5, vocab_tile=100, **options)

    assert cases.too_large(cases.errors(fused, torch.cat(tiles, 1), labels, 4, **transform)) == {}
    rows = from_hidden(hidden, head, labels, bias=bias, row_tile=2, vocab_tile=64, **options)
    assert torch.equal(rows.num_finite, fused.num_finite)
    if dtype == torch.float32:
        assert torch.allclose(rows.entropy, fused.entropy, rtol=1e-5, equal_nan=True)
        assert torch.equal(rows.top_ids, fused.top_ids)


class Largest(TorchDispatchMode):
    """The most elements of any tensor of floats made while it is on; the interpreter copies arguments as bytes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves(made) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        self.numel = max([self.numel, *(t.numel() for t in tensors)])
        return made


def test_the_logits_never_exist_in_full_and_nothing_keeps_a_gradient():
    hidden, head = torch.randn(6, 4, requires_grad=True), torch.randn(900, 4, requires_grad=True)
    with Largest() as spy, torch.autocast("cpu", dtype=torch.bfloat16):
        stats = from_hidden(hidden, head, torch.zeros(6, dtype=torch.long), row_tile=3, vocab_tile=150, n=2)

    assert spy.numel == 150 * 4, "a view of the head is the largest, a tile of logits has 3 x 150"
    assert not any(getattr(stats, name).requires_grad for name in cases.NAMES)
    exact = oracle.token_stats((hidden @ head.T)[0].double().tolist(), 0, 2)
    assert abs(exact["logsumexp"] - stats.logsumexp[0].item()) < 1e-5, "autocast rounded the product"


def test_no_rows_give_no_statistics_of_the_right_shapes():
    stats = from_logits(torch.zeros(0, 50), torch.zeros(0, dtype=torch.long), n=3)

    assert stats.top_ids.shape == stats.top_logps.shape == (0, 3)
    assert stats.entropy.shape == (0,)


def test_dtypes_are_as_promised():
    stats = from_logits(*cases.drawn(1, 50, dtype=torch.bfloat16))
    plain = token_stats.from_logits(*cases.drawn(1, 50, dtype=torch.bfloat16))

    assert {n: getattr(stats, n).dtype for n in cases.NAMES} == {n: getattr(plain, n).dtype for n in cases.NAMES}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": torch.zeros(4, 3, 2)}, "flatten"),
        ({"logits": torch.zeros(4, 9, dtype=torch.float64)}, "float64"),
        ({"n": 65}, "n=65"),
        ({"n": 0}, "n=0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"softcap": 0.0}, "softcap=0.0"),
        ({"labels": torch.zeros(3, dtype=torch.long)}, r"labels \(3,\)"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes, message):
    given_ = {"logits": torch.zeros(4, 9), "labels": torch.zeros(4, dtype=torch.long)}
    with pytest.raises(ValueError, match=message):
        from_logits(**(given_ | changes))
