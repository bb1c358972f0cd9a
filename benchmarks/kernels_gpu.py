"""The kernels' times on a GPU, against their own bare read and against plain torch, in the same run.

    python -P benchmarks/kernels_gpu.py [--rows 8192] [--vocab 151936] [--d 3584]

``bare read``: ``fold`` without block maxima and nothing after it, the least its memory traffic takes; ``logits.sum()``
beside it. Every form is timed in each of several rounds, one after another, by CUDA events; printed are the median over
the rounds and the median of each round's ratio to the bare read.
"""

import argparse
import statistics
from functools import partial

import torch

from entrostat.probe.kernels import backward, triton_stats
from entrostat.probe.kernels.fold import NUM_SUMS, fold
from entrostat.probe.kernels.layout import layout

ROUNDS, REPEATS = 7, 10
NAIVE_ROWS = 1024  # at a time: the naive form makes several [rows, V] of float32
TILE = 1024, 8192  # of from_hidden


def bare_read(logits, labels):
    """A call that reads the logits once and writes a few numbers a row."""
    cut, (rows, columns) = layout(logits.device, logits.dtype, logits.shape[1]), logits.shape
    parts = cut.num_parts(columns)
    sums = torch.empty(parts, NUM_SUMS, rows, device=logits.device)
    factors, label_logits = torch.ones(rows, device=logits.device), torch.empty(rows, device=logits.device)

    def call():
        fold[(rows, parts)](
            logits, logits.stride(0), labels, factors, sums, label_logits, logits, 0, 0, columns,
            cut.block * cut.part_blocks, rows, 0,
            BLOCK=cut.block, SUB=cut.sub, CAP=0.0, SCALE=1.0, MASKED=False, WITH_MAXIMA=False, num_warps=cut.num_warps,
        )  # fmt: skip

    return call


def naive(logits, labels, n):
    """Every statistic by torch's own functions, one after another, in float32."""
    for r0 in range(0, logits.shape[0], NAIVE_ROWS):
        raw, label = logits[r0 : r0 + NAIVE_ROWS].float(), labels[r0 : r0 + NAIVE_ROWS, None]
        log_p = raw.log_softmax(1)
        p, top = log_p.exp(), log_p.topk(n, 1)
        log_p.gather(1, label), -(p * log_p).sum(1), raw.logsumexp(1), p.square().sum(1), log_p.mean(1)
        (top.values.exp().cumsum(1) < 0.95).sum(1), (top.indices == label).any(1)


def with_gradient(logits, labels):
    leaf = logits.detach().requires_grad_()
    stats = backward.from_logits(leaf, labels)
    (stats.logp.sum() + 0.01 * stats.entropy.sum()).backward()


def products(hidden, head):
    """The tiles of ``from_hidden``, made and dropped."""
    for r0 in range(0, hidden.shape[0], TILE[0]):
        for c0 in range(0, head.shape[0], TILE[1]):
            torch.mm(hidden[r0 : r0 + TILE[0]], head[c0 : c0 + TILE[1]].T)


def forms(rows, vocab, d, dtype, device="cuda"):
    """Name -> call, on tensors made once."""
    logits = (torch.randn(rows, vocab, device=device) * 3).to(dtype)
    labels = torch.randint(vocab, (rows,), device=device)
    hidden = torch.randn(rows, d, device=device).to(dtype)
    head = (torch.randn(vocab, d, device=device) / d**0.5).to(dtype)
    found = {"bare read": bare_read(logits, labels), "logits.sum()": logits.sum}
    for n in (4, 8, 16):
        found[f"from_logits n={n}"] = partial(triton_stats.from_logits, logits, labels, n=n)
    found["naive n=8"] = partial(naive, logits, labels, 8)
    found["from_logits n=8 with gradient"] = partial(with_gradient, logits, labels)
    found["head's product in tiles"] = partial(products, hidden, head)
    found["from_hidden n=8"] = partial(triton_stats.from_hidden, hidden, head, labels)
    return found


def milliseconds(call):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPEATS):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / REPEATS


def timed(calls):
    """Lines (name, ms, ratio to the bare read)."""
    for call in calls.values():
        call()  # compiles
    rounds = [{name: milliseconds(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    for name in calls:
        ratio = statistics.median(r[name] / r["bare read"] for r in rounds)
        yield name, statistics.median(r[name] for r in rounds), ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 8192), ("vocab", 151936), ("d", 3584)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device; benchmarks/kernel_instructions.py counts instructions without one")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, [{options.rows}, {options.vocab}], d {options.d}"
    )
    for dtype in (torch.bfloat16, torch.float32):
        gigabytes = options.rows * options.vocab * dtype.itemsize / 1e9
        print(f"\n{dtype}, {gigabytes:.2f} GB of logits\n\n| form | ms | x bare read |\n|---|---|---|")
        for name, ms, ratio in timed(forms(options.rows, options.vocab, options.d, dtype)):
            print(f"| {name} | {ms:.3f} | {ratio:.2f} |")
            if name == "bare read":
                print(f"| (GB/s of it) | {gigabytes / ms * 1e3:.0f} | |")


if __name__ == "__main__":
    main()
