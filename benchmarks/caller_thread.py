"""What a step of logging costs the training thread, ours beside trackers', and what is left of it after SIGKILL.

The work is one of: 40 scalars a step; 40 scalars and 16,384 tokens x 6 float32. Every tool gets the same values, one
step each ``--pace-ms``, in a process of its own; rounds alternate the order. Trackers run in an environment of theirs:

    python -m venv PEERS && PEERS/bin/pip install numpy pandas wandb trackio tensorboardX
    python -P benchmarks/caller_thread.py --peers PEERS/bin/python [--kill | --profile] [--pace-ms 0]

Of ours each step is a real one: ``capture`` of a micro-batch, ``Recorder.end_step``, spool on disk, no server. It also
copies token ids and the mask; the floors copy, or append to a file, those bytes too.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

ROWS, COLUMNS, BLOCKS, SCALARS = 64, 256, 8, 40
NAMES = ("logp", "entropy", "advantages", "log_ratio", "sum_p2", "hidden_norm")
SCALAR_NAMES = [f"metric/number_{i}" for i in range(SCALARS)]
WARM_UP = 10
"""Steps at the start that are not counted: imports at first use, pages of the allocator."""

Block = dict[str, np.ndarray]
Log = Callable[[int, dict[str, float], Block], None]


def blocks() -> list[Block]:
    """Skewed draws of tokens' values, [64, 256] float32 each; the same in every process."""
    random = np.random.default_rng(0)
    shape, made = (ROWS, COLUMNS), []
    for _ in range(BLOCKS):
        values = {
            "logp": -random.exponential(0.6, shape),
            "entropy": random.exponential(0.5, shape),
            "advantages": random.normal(size=(ROWS, 1)) + np.zeros(shape),
            "log_ratio": random.normal(0, 0.02, shape),
            "sum_p2": random.beta(4, 1, shape),
            "hidden_norm": random.gamma(20, 1, shape),
        }
        block: Block = {name: value.astype(np.float32) for name, value in values.items()}
        block["token_ids"] = random.integers(0, 150_000, shape)
        block["mask"] = np.ones(shape, np.bool_)
        made.append(block)
    return made


# --- the tools: each opens in a folder, gives a function of a step, and closes at the end ---------------------------


@contextlib.contextmanager
def memcpy(folder: Path, work: str) -> Iterator[Log]:
    """The floor: the block's bytes copied to fresh memory."""
    kept: list[Any] = []

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        kept.append((dict(scalars), [value.copy() for value in block.values()] if work == "tokens" else None))

    yield log


@contextlib.contextmanager
def append(folder: Path, work: str) -> Iterator[Log]:
    """The floor that outlives the process: the block's bytes appended to a file."""
    with open(folder / "raw", "ab", buffering=0) as file:

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            file.write(np.array([step, *scalars.values()]).tobytes())
            if work == "tokens":
                file.write(b"".join(value.tobytes() for value in block.values()))

        yield log


@contextlib.contextmanager
def rewrite(folder: Path, work: str) -> Iterator[Log]:
    """The floor of what outlives the process: the block's bytes written to the pages that a file has already."""
    files = [os.open(folder / f"raw{k}", os.O_RDWR | os.O_CREAT) for k in range(4)]

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        numbers = np.array([step, *scalars.values()])
        os.pwritev(files[step % len(files)], [numbers, *(block.values() if work == "tokens" else ())], 0)

    yield log
    for file in files:
        os.close(file)


@contextlib.contextmanager
def ours(folder: Path, work: str, budget: int | None = None) -> Iterator[Log]:
    """``capture`` and ``Recorder.end_step`` into a sender with a spool."""
    import logging
    from datetime import UTC, datetime

    import torch

    from entrostat.probe.capture import Observed, capture
    from entrostat.probe.recorder import Recorder
    from entrostat.wire.messages import StreamOpen
    from entrostat.wire.sender import Sender

    logging.getLogger("entrostat").setLevel(logging.ERROR)  # it says, rightly, that no server is set
    torch.set_num_threads(1)
    opening = StreamOpen(run_id="bench", session_id="0" * 32, started=datetime.now(UTC))
    sender = Sender(opening, url=None, token=None, root=folder)
    recorder, generator = Recorder(sender), torch.Generator()
    tensors: dict[int, Observed] = {}

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        if work == "tokens":
            seen = tensors.get(id(block)) or Observed(**{k: torch.from_numpy(v) for k, v in block.items()})
            tensors[id(block)] = seen
            recorder.add(
                capture(seen, measure=None, measure_all=False, budget=budget, generator=generator, keep=recorder.keep)
            )
        recorder.end_step(step, scalars)

    yield log
    sender.close()
    counts = sender.counters
    if counts.dropped_items or counts.failed_items:
        print(f"ours lost steps: {counts}", file=sys.stderr)


@contextlib.contextmanager
def ours_4096(folder: Path, work: str) -> Iterator[Log]:
    """The same with the probe's default budget: 4,096 rows of the step are chosen and kept."""
    with ours(folder, work, 4096) as log:
        yield log


@contextlib.contextmanager
def wandb(folder: Path, work: str) -> Iterator[Log]:
    """Offline; the tokens as a Table."""
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
    import wandb as tool

    tool.Table.MAX_ROWS = tool.Table.MAX_ARTIFACT_ROWS = ROWS * COLUMNS
    run = tool.init(project="bench", dir=str(folder))

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        more = {"tokens": tool.Table(columns=list(NAMES), data=_rows(block))} if work == "tokens" else {}
        run.log(scalars | more, step=step)

    yield log
    run.finish()


@contextlib.contextmanager
def wandb_histograms(folder: Path, work: str) -> Iterator[Log]:
    """Offline; the tokens as six histograms of 64 bins: 0.4 % of the information."""
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
    import wandb as tool

    run = tool.init(project="bench", dir=str(folder))

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        more = {n: tool.Histogram(np_histogram=np.histogram(block[n], 64)) for n in NAMES} if work == "tokens" else {}
        run.log(scalars | more, step=step)

    yield log
    run.finish()


@contextlib.contextmanager
def trackio(folder: Path, work: str) -> Iterator[Log]:
    """Local; the tokens as a Table of a data frame."""
    os.environ |= {"TRACKIO_DIR": str(folder), "TRACKIO_LOCAL": "1"}
    import pandas
    import trackio as tool

    with contextlib.redirect_stdout(sys.stderr):
        tool.init(project="bench", embed=False)

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        more = {}
        if work == "tokens":
            more = {"tokens": tool.Table(dataframe=pandas.DataFrame({n: block[n].reshape(-1) for n in NAMES}))}
        tool.log(scalars | more, step=step)

    yield log
    with contextlib.redirect_stdout(sys.stderr):
        tool.finish()


@contextlib.contextmanager
def tensorboardx(folder: Path, work: str) -> Iterator[Log]:
    """The tokens as six histograms, as it has no tables."""
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder))

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        for name in NAMES if work == "tokens" else ():
            writer.add_histogram(name, block[name], step, bins=64)

    yield log
    writer.close()


def _rows(block: Block) -> list[list[float]]:
    stacked: list[list[float]] = np.stack([block[name].reshape(-1) for name in NAMES], 1).tolist()
    return stacked


TOOLS: dict[str, Callable[[Path, str], contextlib.AbstractContextManager[Log]]] = {
    "floor: memcpy": memcpy,
    "floor: append to a file": append,
    "floor: files used again": rewrite,
    "entrostat, all tokens": ours,
    "entrostat, 4,096 rows": ours_4096,
    "trackio": trackio,
    "wandb offline": wandb,
    "wandb offline, histograms": wandb_histograms,
    "tensorboardX, histograms": tensorboardx,
}
PEERS = {"trackio": "trackio", "wandb offline": "wandb", "wandb offline, histograms": "wandb"} | {
    "tensorboardX, histograms": "tensorboardX"
}
ONLY_WITH_TOKENS = {"entrostat, 4,096 rows", "wandb offline, histograms"}


# --- what is left: distinct steps on the disk -----------------------------------------------------------------------


def kept_ours(folder: Path) -> set[int]:
    """Steps in the batches that ``entrostat push`` would send."""
    from entrostat.probe.stored_step import restore
    from entrostat.wire.codec import decode
    from entrostat.wire.spool import SpoolStream, pending_streams

    steps: set[int] = set()
    for pending in pending_streams(folder):
        stream = SpoolStream.adopt(pending.path, restore)
        for seq, _ in stream.pending():
            tables = decode(stream.read(seq))
            if "step_metric" in tables:
                steps |= set(tables["step_metric"]["step"].to_pylist())
        stream.release()
    return steps


def kept_append(folder: Path) -> set[int]:
    """Whole records in the file."""
    size = (folder / "raw").stat().st_size
    record = 8 * (1 + SCALARS)
    whole = record + sum(value.nbytes for value in blocks()[0].values())
    return set(range(size // (whole if size % whole == 0 else record)))


def kept_trackio(folder: Path) -> set[int]:
    """Steps in its database and, as it reads them back at the next start, in what it had set aside for it."""
    import sqlite3

    steps: set[int] = set()
    for path in folder.rglob("*.db"):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            steps |= {row[0] for row in connection.execute("select step from metrics")}
    return steps


def kept_wandb(folder: Path) -> set[int]:
    """Steps in the history of its log: records in blocks of 32 KiB, each piece with checksum, size and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    steps: set[int] = set()
    for path in folder.rglob("*.wandb"):
        for data in _wandb_records(path.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                steps.add(record.history.step.num)
    return steps


def _wandb_records(data: bytes) -> Iterator[bytes]:
    at, pieces = 7, b""  # after the file's own header
    while at + 7 <= len(data):
        size, kind = struct.unpack_from("<HB", data, at + 4)
        in_block = at % 32768
        if in_block > 32768 - 7 or kind == 0:  # padding up to the next block
            at += 32768 - in_block
            continue
        if at + 7 + size > len(data):
            return
        pieces += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield pieces
            pieces = b""


def kept_tensorboardx(folder: Path) -> set[int]:
    """Steps whose last value is in the file of events."""
    from tensorboardX.proto.event_pb2 import Event

    steps: set[int] = set()
    for path in folder.rglob("events.*"):
        data, at = path.read_bytes(), 0
        while at + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            if at + 16 + size > len(data):
                break
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            if any(value.tag == SCALAR_NAMES[-1] for value in event.summary.value):
                steps.add(event.step)
    return steps


KEPT = {
    "floor: append to a file": kept_append,
    "entrostat, all tokens": kept_ours,
    "entrostat, 4,096 rows": kept_ours,
    "trackio": kept_trackio,
    "wandb offline": kept_wandb,
    "wandb offline, histograms": kept_wandb,
    "tensorboardX, histograms": kept_tensorboardx,
}


# --- one tool in a process of its own -------------------------------------------------------------------------------


def run_tool(tool: str, work: str, steps: int, pace_s: float, folder: Path, kill: bool) -> None:
    """Log ``steps`` steps; print their milliseconds as JSON, or end by SIGKILL as soon as the last call returned."""
    made, random = blocks(), np.random.default_rng(1)
    values = [{n: float(v) for n, v in zip(SCALAR_NAMES, random.normal(size=SCALARS), strict=True)} for _ in made]
    took = []
    with TOOLS[tool](folder, work) as log:
        due = time.perf_counter()
        for step in range(steps):
            scalars, block = values[step % BLOCKS], made[step % BLOCKS]
            began = time.perf_counter()
            log(step, scalars, block)
            took.append((time.perf_counter() - began) * 1e3)
            if kill and step == steps - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            due = max(due + pace_s, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
    print(json.dumps(took))


def _start(given: argparse.Namespace, tool: str, folder: str, *more: str) -> str:
    python = given.peers if tool in PEERS else sys.executable
    command = [python, "-P", __file__, "--tool", tool, "--folder", folder, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"{tool} failed:\n{done.stderr[-3000:]}")
    lost = [line for line in done.stderr.splitlines() if line.startswith("ours lost")]
    for line in lost:
        print(line)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def _steps_of(given: argparse.Namespace, tool: str, work: str) -> int:
    """A Table takes seconds: fewer of them."""
    is_table = work == "tokens" and tool in ("wandb offline", "trackio")
    return int(min(given.steps, 30) if is_table and not given.kill else given.steps)


def _tools(given: argparse.Namespace, work: str) -> list[str]:
    tools = [t for t in TOOLS if (work == "tokens" or t not in ONLY_WITH_TOKENS) and (given.peers or t not in PEERS)]
    if given.kill:
        tools = [t for t in tools if t in KEPT and not (work == "tokens" and t in ("wandb offline", "trackio"))]
    return [t for t in tools if not given.only or given.only in t]


def costs(given: argparse.Namespace, work: str) -> None:
    """Print the table of one kind of work."""
    tools = _tools(given, work)
    took: dict[str, list[list[float]]] = {tool: [] for tool in tools}
    for number in range(given.rounds):
        for tool in tools if number % 2 == 0 else tools[::-1]:
            with tempfile.TemporaryDirectory() as folder:
                told = ["--work", work, "--steps", str(_steps_of(given, tool, work)), "--pace-ms", str(given.pace_ms)]
                took[tool].append(json.loads(_start(given, tool, folder, *told))[WARM_UP:])
    floor = took.get("floor: memcpy")
    print(f"\n| {work}: tool | median ms | p99 ms | max ms | x memcpy of the round: median (min to max) | steps |")
    print("|---|---|---|---|---|---|")
    for tool in tools:
        pooled = sorted(ms for one in took[tool] for ms in one)
        ratio = "-"
        if floor:
            ratios = [statistics.median(a) / statistics.median(b) for a, b in zip(took[tool], floor, strict=True)]
            ratio = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        p99 = pooled[min(len(pooled) - 1, int(0.99 * len(pooled)))]
        print(f"| {tool} | {statistics.median(pooled):.3f} | {p99:.2f} | {pooled[-1]:.2f} | {ratio} | {len(pooled)} |")


def survivors(given: argparse.Namespace, work: str) -> None:
    """Print how many steps are on the disk after SIGKILL, right behind the last step's return."""
    print(f"\n| {work}: tool | steps kept of {given.steps}, one run each |")
    print("|---|---|")
    for tool in _tools(given, work):
        kept = []
        for _ in range(given.rounds):
            with tempfile.TemporaryDirectory() as folder:
                told = ["--work", work, "--steps", str(given.steps), "--pace-ms", str(given.pace_ms)]
                _start(given, tool, folder, *told, "--kill")
                time.sleep(2)  # a tracker's helper process, which nobody killed, may be writing still
                kept.append(_start(given, tool, folder, "--count"))
        print(f"| {tool} | {', '.join(kept)} |", flush=True)


def main() -> None:
    """Measure every tool, or, in a process of its own, one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="python of an environment that has wandb, trackio and tensorboardX")
    parser.add_argument("--kill", action="store_true", help="what is left after SIGKILL, not the cost")
    parser.add_argument("--profile", action="store_true", help="where our own step spends the training thread's time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--pace-ms", type=float, default=50.0)
    parser.add_argument("--work", choices=("scalars", "tokens"), help="one of the two; else both")
    parser.add_argument("--only", help="tools whose name has this in it")
    parser.add_argument("--tool", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tool and given.count:
        print(len(KEPT[given.tool](Path(given.folder))))
    elif given.tool:
        run_tool(given.tool, given.work, given.steps, given.pace_ms / 1e3, Path(given.folder), given.kill)
    else:
        _report(given)


def profile(work: str, steps: int, pace_s: float) -> None:
    """Print what the training thread's calls of our step spend their time in."""
    import cProfile
    import pstats

    made, profiler = blocks(), cProfile.Profile()
    scalars = dict.fromkeys(SCALAR_NAMES, 0.5)
    with tempfile.TemporaryDirectory() as folder, ours(Path(folder), work) as log:
        for step in range(steps):
            if step < WARM_UP:
                log(step, scalars, made[step % BLOCKS])
            else:
                profiler.runcall(log, step, scalars, made[step % BLOCKS])
            time.sleep(pace_s)
    print(f"## {work}, {steps - WARM_UP} steps under cProfile, which makes Python's calls look dearer than they are")
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(14)


def _report(given: argparse.Namespace) -> None:
    print(f"load average at the start {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; {_versions(given.peers)}")
    left_out = "" if given.kill else f", the first {WARM_UP} steps of each left out"
    print(f"a step each {given.pace_ms:g} ms, {given.rounds} rounds{left_out}")
    for work in (given.work,) if given.work else ("scalars", "tokens"):
        if given.profile:
            profile(work, given.steps, given.pace_ms / 1e3)
        else:
            (survivors if given.kill else costs)(given, work)
    print(f"\nload average at the end {os.getloadavg()[0]:.1f}")


def _versions(peers: str | None) -> str:
    own = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "pyarrow", "numpy"))
    if not peers:
        return own
    script = "import importlib.metadata as m; print(', '.join(f'{n} {m.version(n)}' for n in %r))"
    asked = [peers, "-c", script % sorted(set(PEERS.values()))]
    return f"{own}; {subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()}"


if __name__ == "__main__":
    main()
