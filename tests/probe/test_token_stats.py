"""The per-token statistics against slow float64 loops; what must not matter; what must not be hidden."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import token_stats_oracle as oracle
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from entrostat.probe.token_stats import TokenStats, from_hidden, from_logits

NAMES = tuple(TokenStats.__dataclass_fields__)
# Relative, with 1 as the smallest scale: kernels.md section 6 asks for 2e-6 and 1e-5.
TOLERANCE = dict.fromkeys(("logp", "entropy", "logsumexp", "sum_p2", "top_logps"), 2e-6) | {"self_certainty": 1e-5}
TRANSFORMS = [
    {}, {"temperature": 0.7}, {"softcap": 5.0}, {"logit_scale": 0.25},
    {"temperature": 1.3, "softcap": 3.0, "logit_scale": 1.7},
]  # fmt: skip


def drawn(rows, vocab, seed=0, spread=3.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, vocab, generator=generator, dtype=torch.float64) * spread).to(dtype)
    # Half of the labels among the likely ones, so that every rank occurs.
    labels = torch.randint(vocab, (rows,), generator=generator)
    likely = logits.topk(min(6, vocab)).indices
    place = torch.randint(likely.shape[1], (rows, 1), generator=generator)
    return logits, torch.where(torch.arange(rows) % 2 == 0, likely.gather(1, place).squeeze(1), labels)


def errors(stats, logits, labels, n, temperature=1.0, **transform):
    """Largest error of each float field against the oracle on the very same logits; exact fields are asserted."""
    worst = dict.fromkeys(TOLERANCE, 0.0)
    for i, row in enumerate(logits.double().tolist()):
        heat = temperature[i].item() if isinstance(temperature, torch.Tensor) else temperature
        expected = oracle.token_stats(row, int(labels[i]), n, temperature=heat, **transform)
        for name in ("top_ids", *oracle.INTS):
            assert expected[name] == getattr(stats, name)[i].tolist(), (i, name)
        for name in worst:
            want = torch.tensor(expected[name], dtype=torch.float64)
            got = getattr(stats, name)[i].double()
            assert torch.equal(want.isfinite(), got.isfinite()), (i, name, want, got)
            same = torch.where(want.isfinite(), want, 0), torch.where(got.isfinite(), got, 0)
            error = (same[0] - same[1]).abs() / same[0].abs().clamp(min=1)
            worst[name] = max(worst[name], error.max().item())
            # The infinities and NaN themselves.
            assert torch.equal(want.nan_to_num(0, 1, -1).sign()[~want.isfinite()],
                               got.nan_to_num(0, 1, -1).sign()[~got.isfinite()])  # fmt: skip
    return worst


def within(worst, factor=1.0):
    return {k: v for k, v in worst.items() if v > factor * TOLERANCE[k]} == {}


def same_bits(a, b, rows=slice(None)):
    return [k for k in NAMES if not torch.equal(getattr(a, k)[rows].nan_to_num(-7), getattr(b, k).nan_to_num(-7))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize(("rows", "vocab", "n"), [(7, 255, 8), (5, 507, 3), (3, 123, 16), (2, 4001, 8)])
def test_every_statistic_is_its_formula(rows, vocab, n, transform, dtype):
    logits, labels = drawn(rows, vocab, dtype=dtype)

    stats = from_logits(logits, labels, n=n, row_tile=4, vocab_tile=100, **transform)

    # Soft-capped logits crowd at the cap: float32 tells fewer of them apart than float64, so ids may differ there.
    if "softcap" in transform:
        logits = tempered32(logits, **transform)
        transform = {}
    worst = errors(stats, logits, labels, n, **transform)
    assert within(worst), worst


def tempered32(logits, temperature=1.0, softcap=None, logit_scale=1.0):
    return softcap * torch.tanh(logits.float() * logit_scale / softcap) / temperature


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_the_transform_of_the_logits_is_the_trainers(transform):
    """softcap * tanh(scale z / softcap) / T, to float64 precision."""
    logits, labels = drawn(6, 90, dtype=torch.float64)

    worst = errors(from_logits(logits, labels, vocab_tile=32, **transform), logits, labels, 8, **transform)

    assert max(worst.values()) < 1e-12
    assert from_logits(logits, labels).entropy.dtype == torch.float64


def test_float32_is_no_worse_than_plain_torch():
    logits, labels = drawn(64, 507, spread=4.0)
    truth = torch.log_softmax(logits.double(), 1)
    plain = torch.log_softmax(logits, 1)
    stats = from_logits(logits, labels, vocab_tile=100)

    for got, naive, want in [
        (stats.entropy, -(plain.exp() * plain).sum(1), -(truth.exp() * truth).sum(1)),
        (stats.logp, plain.gather(1, labels[:, None])[:, 0], truth.gather(1, labels[:, None])[:, 0]),
        (stats.logsumexp, logits.logsumexp(1), logits.double().logsumexp(1)),
    ]:
        ours, theirs = (got - want).abs().max(), (naive - want).abs().max()
        assert ours <= 2 * theirs + 1e-7


@pytest.mark.parametrize("offset", [-300.0, 60.0, 300.0])
def test_an_offset_of_all_logits_costs_the_entropy_no_digits(offset):
    # Multiples of 1/64: adding the offset is exact in float32, so the truth does not move.
    logits, labels = drawn(8, 507)
    logits = (logits * 64).round() / 64
    still, moved = from_logits(logits, labels, vocab_tile=64), from_logits(logits + offset, labels, vocab_tile=64)

    for name in ("entropy", "logp", "sum_p2", "self_certainty", "top_ids", "top_logps", "rank", "support95"):
        assert torch.equal(getattr(still, name), getattr(moved, name)), name
    assert torch.allclose(still.logsumexp + offset, moved.logsumexp, atol=4e-5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000), vocab=st.integers(1, 300), n=st.integers(1, 12), row_tile=st.integers(1, 9),
    vocab_tile=st.integers(1, 310), is_coarse=st.booleans(), masked=st.sampled_from([0.0, 0.3, 0.95]),
)  # fmt: skip
def test_tiles_do_not_matter(seed, vocab, n, row_tile, vocab_tile, is_coarse, masked):
    logits, labels = drawn(5, vocab, seed)
    logits = logits.round() if is_coarse else logits  # ties everywhere
    hide = torch.rand(5, vocab, generator=torch.Generator().manual_seed(seed)) < masked
    logits = logits.masked_fill(hide, -torch.inf)

    stats = from_logits(logits, labels, n=n, row_tile=row_tile, vocab_tile=vocab_tile)

    worst = errors(stats, logits, labels, n)
    assert within(worst), worst


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_order_of_the_vocabulary_does_not_matter(seed):
    logits, labels = drawn(6, 200, seed)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(seed))

    one = from_logits(logits, labels, vocab_tile=64)
    other = from_logits(logits[:, order], order.argsort()[labels], vocab_tile=64)

    assert torch.equal(one.top_ids, order[other.top_ids])
    for name in ("rank", "is_top1", "support95", "num_finite"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    for name, tolerance in TOLERANCE.items():
        assert torch.allclose(getattr(one, name), getattr(other, name), rtol=tolerance, atol=tolerance), name


def test_of_equal_logits_the_lower_id_comes_first():
    logits = torch.zeros(1, 300)
    logits[0, 250:] = 1.0
    stats = from_logits(logits, torch.tensor([252]), n=4, vocab_tile=37)

    assert stats.top_ids.tolist() == [[250, 251, 252, 253]]
    assert stats.rank.tolist() == [3]
    assert from_logits(torch.zeros(1, 300), torch.tensor([0]), n=4).top_ids.tolist() == [[0, 1, 2, 3]]


def test_a_masked_candidate_adds_nothing_and_is_never_among_the_likely():
    logits, labels = drawn(4, 60)
    few = logits.masked_fill(torch.arange(60) >= 5, -torch.inf)
    labels = torch.tensor([0, 1, 40, 2])

    # Tiles of 7: most hold nothing but -inf.
    stats = from_logits(few, labels, vocab_tile=7)
    alone = from_logits(logits[:, :5], labels.clamp(max=4))

    assert within(errors(stats, few, labels, 8))
    assert stats.num_finite.tolist() == [5] * 4
    assert stats.top_ids[:, 5:].eq(-1).all()
    assert stats.top_logps[:, 5:].eq(-torch.inf).all()
    assert torch.allclose(stats.self_certainty, alone.self_certainty)
    assert stats.logp[2] == -torch.inf
    assert stats.rank[2] == 9


def test_masks_that_come_first_do_not_spoil_what_follows():
    """A whole first tile of -inf, or of the lowest float that some code masks with."""
    logits, labels = drawn(2, 90)
    logits[0, :64], logits[1, :64] = -torch.inf, torch.finfo(torch.float32).min
    labels[:] = 80
    stats = from_logits(logits, labels, vocab_tile=32)
    short = from_logits(logits[:, 64:], labels - 64)

    for name in ("entropy", "logp", "logsumexp", "sum_p2"):
        assert torch.allclose(getattr(stats, name), getattr(short, name), rtol=1e-6), name


def test_nothing_is_hidden_and_other_rows_do_not_notice():
    logits, labels = drawn(6, 100)
    labels[4] = -100
    clean = from_logits(logits, labels, vocab_tile=32)
    spoilt = logits.clone()
    spoilt[0, 70], spoilt[1, 3], spoilt[2], spoilt[5, 0] = math.nan, math.inf, -math.inf, math.nan
    spoilt[4] = math.nan

    stats = from_logits(spoilt, labels, vocab_tile=32)

    assert within(errors(stats, spoilt, labels, 8))
    assert stats.logsumexp[2] == -torch.inf
    assert stats.num_finite.tolist() == [99, 99, 0, 100, 0, 99]
    for name in NAMES:
        assert torch.equal(getattr(stats, name)[3], getattr(clean, name)[3]), name


def test_a_soft_cap_hides_neither_a_mask_nor_an_overflow():
    logits, labels = drawn(3, 40)
    logits[0, 5], logits[1, 6], labels[0] = -math.inf, math.inf, 5
    stats = from_logits(logits, labels, softcap=4.0)

    assert stats.logp[0] == -torch.inf
    assert stats.num_finite[0] == 39
    assert stats.entropy.isnan().tolist() == [False, True, False]


def test_a_label_outside_the_vocabulary_has_no_log_prob_and_spoils_nothing_else():
    logits, labels = drawn(2, 40)
    outside = labels.clone()
    outside[0] = 40
    seen, right = from_logits(logits, outside, vocab_tile=16), from_logits(logits, labels, vocab_tile=16)

    assert seen.logp.isnan().tolist() == [True, False]
    assert seen.rank[0] == 9
    assert torch.equal(seen.entropy, right.entropy)


def test_a_temperature_for_each_row():
    logits, labels = drawn(5, 123, dtype=torch.float64)
    heat = torch.tensor([0.5, 1.0, 1.7, 0.0, -1.0])
    stats = from_logits(logits, labels, temperature=heat, vocab_tile=50, row_tile=2)

    assert max(errors(TokenStats(*(getattr(stats, k)[:3] for k in NAMES)),
                      logits[:3], labels, 8, temperature=heat.double()).values()) < 1e-12  # fmt: skip
    assert stats.entropy[3:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [123, 507, 4001])
def test_the_bits_of_a_row_do_not_depend_on_the_batch(vocab, dtype):
    logits, labels = drawn(33, vocab, dtype=dtype)
    together = from_logits(logits, labels, vocab_tile=1000)

    for rows in (slice(0, 1), slice(7, 9), slice(20, 33)):
        assert same_bits(together, from_logits(logits[rows], labels[rows], vocab_tile=1000), rows) == []


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_from_hidden_is_from_the_logits_of_the_head(transform, has_bias):
    generator = torch.Generator().manual_seed(1)
    hidden, head = torch.randn(37, 24, generator=generator), torch.randn(507, 24, generator=generator)
    bias = torch.randn(507, generator=generator) if has_bias else None
    logits = hidden.double() @ head.double().T + (0 if bias is None else bias.double())
    labels = torch.randint(507, (37,), generator=generator)

    fused = from_hidden(hidden, head, labels, bias=bias, row_tile=10, vocab_tile=100, **transform)
    plain = from_logits(logits, labels, **transform)

    for name in TOLERANCE:
        assert torch.allclose(getattr(fused, name).double(), getattr(plain, name), rtol=3e-6, atol=3e-6), name
    if "softcap" not in transform:
        assert torch.equal(fused.top_ids, plain.top_ids)
        assert torch.equal(fused.rank, plain.rank)


@pytest.mark.parametrize("has_bias", [False, True])
def test_bf16_is_multiplied_in_bf16_as_the_trainer_does(has_bias):
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(16, 32, generator=generator).bfloat16()
    head, bias = torch.randn(255, 32, generator=generator).bfloat16(), torch.randn(255, generator=generator).bfloat16()
    labels = torch.randint(255, (16,), generator=generator)
    rounded = hidden @ head.T
    rounded = rounded + bias if has_bias else rounded
    fused = from_hidden(hidden, head, labels, bias=bias if has_bias else None)

    assert same_bits(fused, from_logits(rounded, labels)) == []
    exact = from_hidden(hidden.float(), head.float(), labels, bias=bias.float() if has_bias else None)
    assert not torch.allclose(fused.logsumexp, exact.logsumexp, rtol=1e-5)


def test_a_row_of_hidden_states_alone_or_in_a_batch():
    generator = torch.Generator().manual_seed(3)
    hidden, head = torch.randn(65, 48, generator=generator), torch.randn(300, 48, generator=generator)
    labels = torch.randint(300, (65,), generator=generator)
    together, alone = from_hidden(hidden, head, labels), from_hidden(hidden[7:8], head, labels[7:8])

    for name in TOLERANCE:
        assert torch.allclose(getattr(together, name)[7:8], getattr(alone, name), rtol=1e-6, atol=1e-6), name


class Largest(TorchDispatchMode):
    """The most elements of any tensor made while it is on."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(t.numel() for t in tree_leaves(made) if isinstance(t, torch.Tensor))])
        return made


class Waits(TorchDispatchMode):
    """Refuses what reads a value back to the host, or makes a shape depend on one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not any(
            word in str(func) for word in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default")
        )
        return func(*args, **(kwargs or {}))


def test_the_logits_never_exist_in_full():
    hidden, head, labels = torch.randn(60, 8), torch.randn(3000, 8), torch.zeros(60, dtype=torch.long)
    with Largest() as spy:
        from_hidden(hidden, head, labels, row_tile=16, vocab_tile=500, n=4)

    # A tile, filled up to a whole block of columns, and never more: 16 x 512 of 60 x 3000; the head itself is a view.
    assert spy.numel <= max(16 * 512, head.numel())
    assert spy.numel < 60 * 3000 / 5


def test_no_value_is_read_back_and_nothing_keeps_a_gradient():
    hidden, head = torch.randn(9, 8, requires_grad=True), torch.randn(70, 8, requires_grad=True)
    heat = torch.ones(9)
    with Waits():
        stats = from_hidden(hidden, head, torch.arange(9), temperature=heat, softcap=9.0, vocab_tile=32)

    assert not any(getattr(stats, name).requires_grad for name in NAMES)


def test_autocast_around_it_changes_nothing():
    hidden, head, labels = torch.randn(9, 32), torch.randn(70, 32), torch.arange(9)
    plain = from_hidden(hidden, head, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = from_hidden(hidden, head, labels)

    assert same_bits(plain, inside) == []


def test_no_rows_give_no_statistics_of_the_right_shapes():
    stats = from_logits(torch.zeros(0, 50), torch.zeros(0, dtype=torch.long), n=3)

    assert stats.top_ids.shape == stats.top_logps.shape == (0, 3)
    assert stats.entropy.shape == (0,)


def test_dtypes_are_as_promised():
    stats = from_logits(*drawn(3, 50, dtype=torch.bfloat16))

    assert {getattr(stats, name).dtype for name in TOLERANCE} == {torch.float32}
    assert {stats.top_ids.dtype, stats.rank.dtype, stats.support95.dtype, stats.num_finite.dtype} == {torch.int64}
    assert stats.is_top1.dtype == torch.bool


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": torch.ones(3)}, r"temperature \(3,\)"),
        ({"softcap": 0.0}, "softcap=0.0"),
        ({"logit_scale": -1.0}, "logit_scale=-1.0"),
        ({"n": 0}, "n=0"),
        ({"labels": torch.zeros(3, dtype=torch.long)}, r"labels \(3,\)"),
        ({"labels": torch.zeros(4)}, "labels are torch.float32"),
        ({"head_weight": torch.zeros(9, 6)}, r"head_weight \(9, 6\)"),
        ({"head_weight": torch.zeros(9, 5).bfloat16()}, "cast one"),
        ({"bias": torch.zeros(8)}, r"bias \(8,\)"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes, message):
    given_ = {"hidden": torch.zeros(4, 5), "head_weight": torch.zeros(9, 5), "labels": torch.zeros(4, dtype=torch.long)}
    with pytest.raises(ValueError, match=message):
        from_hidden(**(given_ | changes))
