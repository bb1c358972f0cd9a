"""The kernels on a GPU: the interpreter's cases, and what only a device shows. CPU twins are in ``interpreted/``."""

import pytest
import torch
from support import kernel_cases as cases

from entrostat.probe import token_stats
from entrostat.probe.kernels.availability import available
from entrostat.probe.kernels.layout import Layout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and available(torch.device("cuda"))),
        reason="needs a CUDA device of sm_80 or later, and Triton",
    ),
]
SMALL = Layout(block=1024, sub=64, part_blocks=1, num_warps=4, top_warps=1)


def moved(transform):
    return {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in transform.items()}


@pytest.mark.parametrize("cut", [None, SMALL], ids=["layout", "small"])
@pytest.mark.parametrize("case", list(cases.cases()), ids=lambda case: case.name)
def test_every_statistic_is_its_formula(case, cut):
    from entrostat.probe.kernels.triton_stats import from_logits

    logits = case.logits.cuda()
    stats = from_logits(logits, case.labels.cuda(), n=case.n, cut=cut, **moved(case.transform), **case.options)

    worst = cases.errors(stats, case.logits, case.labels, case.n, **case.transform)
    assert cases.too_large(worst) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [4001, 32768, 151936])
def test_a_whole_vocabulary(vocab, dtype):
    from entrostat.probe.kernels.triton_stats import from_logits

    logits, labels = cases.drawn(2, vocab, dtype=dtype)
    stats = from_logits(logits.cuda(), labels.cuda(), n=16)

    assert cases.too_large(cases.errors(stats, logits, labels, 16)) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [507, 4001, 50280, 151936])
def test_the_bits_of_a_row_do_not_depend_on_the_batch(vocab, dtype):
    from entrostat.probe.kernels.triton_stats import from_logits

    logits, labels = (x.cuda() for x in cases.drawn(300, vocab, dtype=dtype))
    together = from_logits(logits, labels)

    for rows in (slice(0, 1), slice(7, 8), slice(16, 32), slice(1, 300)):
        assert cases.different(together, from_logits(logits[rows], labels[rows]), rows) == []


def test_two_runs_give_the_same_bits():
    from entrostat.probe.kernels.triton_stats import from_logits

    logits, labels = (x.cuda() for x in cases.drawn(200, 40001, dtype=torch.bfloat16))

    assert cases.different(from_logits(logits, labels), from_logits(logits, labels)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_hidden_is_from_the_logits_of_its_tiles(dtype):
    from entrostat.probe.kernels.triton_stats import from_hidden, from_logits

    generator = torch.Generator().manual_seed(1)
    hidden, head = (torch.randn(size, 64, generator=generator).to("cuda", dtype) for size in (100, 5000))
    labels = torch.arange(100, device="cuda")
    tiles = [hidden @ head[c : c + 2048].T for c in range(0, 5000, 2048)]
    fused = from_hidden(hidden, head, labels, vocab_tile=2048)
    plain = from_logits(torch.cat(tiles, 1), labels)

    assert torch.equal(fused.top_ids, plain.top_ids)
    for name in cases.TOLERANCE:
        assert torch.allclose(getattr(fused, name), getattr(plain, name), rtol=2e-6, atol=2e-6), name


def test_extra_memory_does_not_grow_with_the_vocabulary_times_the_rows():
    from entrostat.probe.kernels.triton_stats import from_logits

    logits = torch.randn(2048, 151936, device="cuda", dtype=torch.bfloat16)
    labels = torch.zeros(2048, dtype=torch.long, device="cuda")
    from_logits(logits[:8], labels[:8])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    from_logits(logits, labels)

    assert torch.cuda.max_memory_allocated() - before < 48 * 2**20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_float64_autograd(dtype):
    from entrostat.probe.kernels import backward

    logits, labels = cases.drawn(4, 5000, dtype=dtype)
    mine = logits.cuda().requires_grad_()
    stats = backward.from_logits(mine, labels.cuda(), temperature=0.8)
    (stats.logp.sum() + 0.3 * stats.entropy.sum() + stats.top_logps.sum()).backward()

    truth = logits.double().requires_grad_()
    log_p = (truth / 0.8).log_softmax(1)
    entropy = -(log_p.exp() * log_p).sum()
    top = log_p.gather(1, stats.top_ids.cpu()).sum()
    (log_p.gather(1, labels[:, None]).sum() + 0.3 * entropy + top).backward()
    tolerance = 3e-6 if dtype == torch.float32 else 2**-8
    assert (mine.grad.cpu().double() - truth.grad).abs().max() < tolerance * truth.grad.abs().max()


def test_gradients_through_the_head_are_those_of_autograd():
    from entrostat.probe.kernels import backward

    generator = torch.Generator().manual_seed(4)
    hidden, head = (torch.randn(size, 32, generator=generator) for size in (50, 3000))
    labels = torch.arange(50)
    ours = [t.cuda().requires_grad_() for t in (hidden, head)]
    backward.from_hidden(*ours, labels.cuda(), row_tile=16, vocab_tile=1024).logp.sum().backward()

    truth = [t.double().requires_grad_() for t in (hidden, head)]
    (truth[0] @ truth[1].T).log_softmax(1).gather(1, labels[:, None]).sum().backward()
    for mine, exact in zip(ours, truth):
        assert (mine.grad.cpu().double() - exact.grad).abs().max() < 1e-5 * exact.grad.abs().max()


def test_nothing_waits_for_the_device():
    from entrostat.probe.kernels.triton_stats import from_logits

    logits, labels = (x.cuda() for x in cases.drawn(8, 4001))
    from_logits(logits, labels)  # compiled now: loading a module may wait
    heat = torch.ones(8, device="cuda")
    from_logits(logits, labels, temperature=heat)
    torch.cuda.set_sync_debug_mode("error")
    try:
        stats = from_logits(logits, labels, temperature=heat)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    plain = token_stats.from_logits(logits.double(), labels)
    assert torch.equal(stats.top_ids, plain.top_ids)
