"""TRL's own fused head against ours on the same hidden states: ``python -P benchmarks/trl_head.py``.

Rounds of forward and backward are interleaved, the order alternating. Printed are ratios ours / TRL's, of CPU time (of
wall time on a GPU), and the peak of memory beside inputs and gradients, each from a process of its own. Ours gives the
eight best candidates of every token beside; TRL's gives what its trainers ask for (log-probs and entropy), or all.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
TRLS, OURS = "trl", "ours"
LOSSES = ("log-prob", "log-prob, entropy", "log-prob, half of the rows")


def main() -> None:
    """Print a table of losses, and where the time goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=896)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--peak-of", choices=(TRLS, OURS), help="only print the peak memory of one pass, MB")
    chosen = parser.parse_args()
    if chosen.peak_of:
        print(json.dumps(_peak_mb(chosen)))
        return
    case = Case(chosen)
    print(f"{case.where}; [{chosen.rows}, {chosen.width}] x [{chosen.vocab}, {chosen.width}], {chosen.dtype}")
    for head in (TRLS, OURS):  # compiles, and finds its memory
        case.run(head, LOSSES[0])
    print("\n| loss over | TRL's outputs | TRL's s | ours / TRL's: median (min to max) | forward | backward |")
    print("|---|---|---|---|---|---|")
    for loss in LOSSES:
        for outputs in (("log_probs", "entropy"), ("log_probs", *_all_outputs())):
            case.outputs = outputs
            named = "two" if len(outputs) == 2 else "all"
            if loss == LOSSES[0] or named == "two":
                print(f"| {loss} | {named} | {_row(case, loss, chosen.rounds)} |", flush=True)
    print("\n| part | s, median |\n|---|---|")
    for name, seconds in case.parts(chosen.rounds).items():
        print(f"| {name} | {seconds:.2f} |")
    print("\n| head | peak memory beside inputs and gradients, MB |\n|---|---|")
    for head in (TRLS, OURS):
        answer = subprocess.run(
            [sys.executable, *sys.argv, "--peak-of", head], capture_output=True, text=True, check=True
        )
        print(f"| {head} | {json.loads(answer.stdout):.0f} |", flush=True)


def _row(case: "Case", loss: str, rounds: int) -> str:
    both, forward, backward, theirs = [], [], [], []
    for number in range(rounds):
        order = (TRLS, OURS) if number % 2 == 0 else (OURS, TRLS)
        took = {head: case.run(head, loss) for head in order}
        both.append(sum(took[OURS]) / sum(took[TRLS]))
        forward.append(took[OURS][0] / took[TRLS][0])
        backward.append(took[OURS][1] / took[TRLS][1])
        theirs.append(sum(took[TRLS]))
    spread = f"{statistics.median(both):.2f} ({min(both):.2f} to {max(both):.2f})"
    return (
        f"{statistics.median(theirs):.2f} | {spread} | {statistics.median(forward):.2f} "
        f"| {statistics.median(backward):.2f}"
    )


def _all_outputs() -> tuple[str, ...]:
    from trl.kernels.chunked_logprob import OPTIONAL_OUTPUTS

    return tuple(OPTIONAL_OUTPUTS)


class Case:
    """Hidden states, head and labels; a pass of either head."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        import torch

        self.torch, self.n = torch, chosen.candidates
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        dtype = getattr(torch, chosen.dtype)
        make = {"device": self.device, "dtype": dtype}
        self.hidden = torch.randn(chosen.rows, chosen.width, **make).requires_grad_()
        self.weight = (torch.randn(chosen.vocab, chosen.width, **make) * 0.1).requires_grad_()
        self.labels = torch.randint(chosen.vocab, (chosen.rows,), device=self.device)
        self.half = (torch.arange(chosen.rows, device=self.device) % 2).float()
        self.outputs: tuple[str, ...] = ("log_probs", "entropy")
        name = torch.cuda.get_device_name() if self.device == "cuda" else f"CPU, {torch.get_num_threads()} thread(s)"
        self.where = f"{name}, torch {torch.__version__}"

    def forward(self, head: str):  # type: ignore[no-untyped-def]
        """Log-probs and entropy [N]."""
        if head == OURS:
            from entrostat.probe.fused_head import fused_head

            stats = fused_head(self.hidden, self.weight, self.labels, n=self.n)
            return stats.logp, stats.entropy
        from trl.kernels import ChunkedLogProbFunction
        from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

        return ChunkedLogProbFunction.apply(
            self.hidden, self.weight, None, self.labels, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, self.outputs
        )[:2]

    def run(self, head: str, loss: str) -> tuple[float, float]:
        """Seconds of a forward and of its backward."""
        self.hidden.grad = self.weight.grad = None
        t0 = self.now()
        logp, entropy = self.forward(head)
        t1 = self.now()
        total = (logp * self.half).sum() if "half" in loss else logp.sum()
        (total + entropy.sum() if "entropy" in loss else total).backward()
        return t1 - t0, self.now() - t1

    def parts(self, rounds: int) -> dict[str, float]:
        """What a pass cannot do without: its products."""
        torch, hidden, weight = self.torch, self.hidden.detach(), self.weight.detach()
        step = 8192

        def logits() -> None:
            for c in range(0, len(weight), step):
                hidden @ weight[c : c + step].T

        def both_gradients() -> None:
            tile = torch.ones(len(hidden), step, dtype=torch.float32, device=self.device)
            states, total = hidden.float(), torch.zeros(hidden.shape, device=self.device)
            for c in range(0, len(weight), step):
                head = weight[c : c + step].float()
                total.addmm_(tile[:, : len(head)], head)
                tile[:, : len(head)].T @ states

        found = {}
        for name, work in {"the logits, in tiles (needed twice)": logits, "both gradients": both_gradients}.items():
            times = []
            for _ in range(rounds):
                begin = self.now()
                work()
                times.append(self.now() - begin)
            found[name] = statistics.median(times)
        return found

    def now(self) -> float:
        """Seconds: of this process on a CPU, where others run too; of the clock once a GPU is done."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()


def _peak_mb(chosen: argparse.Namespace) -> float:
    case = Case(chosen)
    torch = case.torch
    gradients = sum(x.numel() * x.element_size() for x in (case.hidden, case.weight)) / 1e6
    if case.device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        case.run(chosen.peak_of, LOSSES[1])
        return (torch.cuda.max_memory_allocated() - before) / 1e6 - gradients
    case.run(chosen.peak_of, LOSSES[1])  # what is loaded or compiled once is not the pass's
    case.hidden.grad = case.weight.grad = None
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    _reset_peak()
    before_kb = _status_kb("VmRSS")
    case.run(chosen.peak_of, LOSSES[1])
    return (_status_kb("VmHWM") - before_kb) / 1e3 - gradients


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _status_kb(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


if __name__ == "__main__":
    main()
