"""The statistics of logits [N, V] on a CPU, against floors, plain torch and other projects: ``make bench-kernels``.

Time is CPU time (user + system) of one thread, which a shared machine spoils least, or wall time with ``--threads``.
Rounds are interleaved: each times every contestant once, and what is reported is the median of a round's ratios.
Memory is the peak of resident memory beyond what was there before the call, in a process of its own. The error is the
largest of the entropies of 64 rows against float64.
"""

import argparse
import contextlib
import ctypes
import datetime
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from entrostat.probe import token_stats

N_TOP = 8
FLOOR, LSE, OURS = "logits.sum()", "torch.logsumexp alone", "TokenStats, compiled: all"
SHAPES = ((1024, 151936), (4096, 32768))
Contestant = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]
"""(logits, labels) -> entropy, or None where it makes none."""


def ours(kernel: str) -> Contestant:
    def run(logits, labels):  # type: ignore[no-untyped-def]
        os.environ["ENTROSTAT_KERNEL"] = kernel
        return token_stats.from_logits(logits, labels, n=N_TOP).entropy

    return run


def naive(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Every output as one would write it down, in float32."""
    logps = torch.log_softmax(logits.float(), 1)
    p = torch.softmax(logits.float(), 1)
    label_logps = logps.gather(1, labels[:, None])
    torch.logsumexp(logits.float(), 1)
    top = logps.topk(N_TOP, 1)
    (logps > label_logps).sum(1) + 1
    (top.values.exp().cumsum(1) < 0.95).sum(1) + 1
    p.square().sum(1)
    logps.mean(1)
    return -(p * logps).sum(1)


def contestants() -> tuple[dict[str, Contestant], list[str]]:
    """By name; and what is left out, and why."""
    found: dict[str, Contestant] = {
        FLOOR: lambda z, _: z.sum() and None,
        LSE: lambda z, _: torch.logsumexp(z, 1) is None or None,
        f"torch.topk({N_TOP}) alone": lambda z, _: z.topk(N_TOP, 1) is None or None,
        OURS: ours("compiled"),
        "TokenStats, plain: all": ours("plain"),
        "naive: all": naive,
    }
    left_out = []
    for add in (_trl, _verl):
        try:
            name, function = add()
            found[name] = function
        except ImportError as error:
            left_out.append(f"{add.__name__.strip('_')}: not measured, {error}")
    return found, left_out


def _trl() -> tuple[str, Contestant]:
    utils = importlib.import_module("trl.trainer.utils")

    def run(logits, labels):  # type: ignore[no-untyped-def]
        utils.selective_log_softmax(logits, labels)
        logits.topk(N_TOP, 1)
        return utils.entropy_from_logits(logits)

    return f"TRL: log-prob, entropy; topk({N_TOP})", run


def _verl() -> tuple[str, Contestant]:
    functional = importlib.import_module("verl.utils.torch_functional")

    def run(logits, labels):  # type: ignore[no-untyped-def]
        functional.logprobs_from_logits(logits, labels)
        functional.calculate_sum_pi_squared_from_logits(logits)
        logits.topk(N_TOP, 1)
        return functional.entropy_from_logits_with_chunking(logits)

    return f"verl: log-prob, entropy, sum p^2; topk({N_TOP})", run


def drawn(rows: int, vocab: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """64 rows of normal logits, sigma 3, over and over: drawing them all takes longer than measuring."""
    generator = torch.Generator().manual_seed(0)
    some = (torch.randn(64, vocab, generator=generator) * 3).to(dtype)
    return some.repeat(-(-rows // 64), 1)[:rows], torch.randint(vocab, (rows,), generator=generator)


def seconds(function: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    function()
    return clock() - start


def error(entropy: torch.Tensor | None, logits: torch.Tensor) -> float | None:
    """Largest of 64 rows, nats."""
    if entropy is None:
        return None
    logps = torch.log_softmax(logits[:64].double(), 1)
    return (entropy[:64].double() + (logps.exp() * logps).sum(1)).abs().max().item()


@torch.no_grad()
def extra_mb(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Peak resident memory over that before the call, of each contestant, after a first call."""
    with_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    peaks = {}
    for name, function in contestants()[0].items():
        function(logits[:128], labels[:128])  # compiles, loads libraries
        if with_libc is not None:
            with_libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before = _status("VmRSS")
        function(logits, labels)
        peaks[name] = (_status("VmHWM") - before) / 1024
    return peaks


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def memory_in_a_process(rows: int, vocab: int, dtype: str) -> dict[str, float]:
    with contextlib.suppress(subprocess.CalledProcessError, json.JSONDecodeError):
        # Freed memory goes back at once, so that no contestant lives off what another left.
        settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        command = [sys.executable, "-P", __file__, "--memory", f"{rows},{vocab},{dtype}"]
        out = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True).stdout
        found: dict[str, float] = json.loads(out.splitlines()[-1])
        return found
    return {}


@torch.no_grad()
def table(rows: int, vocab: int, dtype: torch.dtype, rounds: int, clock: Callable[[], float]) -> Iterator[str]:
    """Lines of markdown."""
    name = str(dtype).removeprefix("torch.")
    logits, labels = drawn(rows, vocab, dtype)
    functions, _ = contestants()
    errors = {who: error(function(logits[:128], labels[:128]), logits) for who, function in functions.items()}
    times: dict[str, list[float]] = {who: [] for who in functions}
    for number in range(rounds):
        order = list(functions) if number % 2 == 0 else list(reversed(functions))
        for who in order:
            times[who].append(seconds(lambda f=functions[who]: f(logits, labels), clock))  # type: ignore[misc]
    memory = memory_in_a_process(rows, vocab, name)

    def over(who: str, whom: str) -> str:
        ratios = [a / b for a, b in zip(times[who], times[whom], strict=True)]
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"

    yield f"\n## [{rows}, {vocab}] {name}\n"
    yield "| | x sum | x logsumexp: median (min to max) | x ours | extra MB | entropy error, nats |"
    yield "|---|---|---|---|---|---|"
    for who in functions:
        off = "" if errors[who] is None else f"{errors[who]:.1e}"
        sum_ratio = over(who, FLOOR).split()[0]
        extra = f"{memory[who]:.0f}" if who in memory else "not measured"
        yield f"| {who} | {sum_ratio} | {over(who, LSE)} | {over(who, OURS).split()[0]} | {extra} | {off} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="instead of 1024 (V = 151936) and 4096 (V = 32768)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores", help="its name in the file's name")
    parser.add_argument("--write", action="store_true", help="to benchmarks/results/kernels_<machine>_<date>.md, too")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.memory:
        rows, vocab, dtype = given.memory.split(",")
        print(json.dumps(extra_mb(*drawn(int(rows), int(vocab), getattr(torch, dtype)))))
        return
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    clock, what = (time.process_time, "CPU time") if given.threads == 1 else (time.perf_counter, "wall time")
    arguments = " ".join(a for a in sys.argv[1:] if a != "--write")
    path = Path(__file__).parent / "results" / f"kernels_{given.machine}_{today}.md"
    lines = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if given.write:  # at once: a run that is stopped has told what it saw
            path.write_text("\n".join(lines) + "\n")

    say("# TokenStats from logits on a CPU\n")
    say(
        f"`make bench-kernels{f' ARGS={arguments!r}' if arguments else ''}`, {today}, {given.machine}, "
        f"torch {torch.__version__}, {given.threads} thread, {what}, {given.rounds} interleaved rounds, n = {N_TOP}. "
        "Load when it began: " + ", ".join(f"{load:.1f}" for load in os.getloadavg()) + "."
    )
    for line in contestants()[1]:
        say(f"\n{line}.")
    for rows, vocab in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            for line in table(given.rows or rows, vocab, dtype, given.rounds, clock):
                say(line)


if __name__ == "__main__":
    main()
