"""What a step of logging costs the training thread, ours beside trackers', and what is left of it after SIGKILL.

The work is one of: 40 scalars a step; 40 scalars and 16,384 tokens x 6 float32. Every tool gets the same values, one
step each ``--pace-ms``, in a process of its own; rounds alternate the order. `trackers/` has a module for each tool.
Each tracker has an environment of its own, and no network is used:

    python -P benchmarks/caller_thread.py --install FOLDER
    python -P benchmarks/caller_thread.py --peers FOLDER [--kill | --profile] [--pace-ms 0] [--hogs 8]

``--peers`` takes a folder of environments, or interpreters. What is logged is no tracker's choice but its own fastest
way that its documentation shows: asynchronous where it has that, tables, artifacts or histograms for the tokens.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).resolve().parent))  # for the package trackers; behind whatever is installed

from trackers import TOOLS
from trackers.environments import Environments, find, install
from trackers.tool import Tool
from trackers.work import BLOCKS, SCALAR_NAMES, blocks, scalars

WARM_UP = 10
"""Steps at the start that are not counted: imports at first use, pages of the allocator."""
SLOW_STEPS = 20
"""Steps of a tool whose step with tokens takes tenths of a second."""
CONTROL_STEPS = 20
"""Steps of the run that ends properly: what a tool's reader finds there shows that it can read."""


# --- one tool in a process of its own -------------------------------------------------------------------------------


def run_tool(tool: Tool, work: str, steps: int, pace_s: float, folder: Path, told: Path, kill: bool) -> None:
    """Log ``steps`` steps and write their milliseconds to ``told``; or end by SIGKILL when the last call returned."""
    made, values, took = blocks(), scalars(), []
    with tool.start(folder, work) as log:
        due = time.perf_counter()
        for step in range(steps):
            numbers, block = values[step % BLOCKS], made[step % BLOCKS]
            began = time.perf_counter()
            log(step, numbers, block)
            took.append((time.perf_counter() - began) * 1e3)
            if kill and step == steps - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            due = max(due + pace_s, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
        told.write_text(json.dumps(took))  # before the end, which is the tool's own and may not come


class Failed(Exception):
    """The tool's process ended with an error; its last line says which."""


class Runner:
    """Starts tools in processes of their own.

    Args:
        given: The options.
        environments: What ``find`` found.
    """

    def __init__(self, given: argparse.Namespace, environments: Environments) -> None:
        self.given, self.environments = given, environments

    def tools(self, work: str) -> list[Tool]:
        """The tools of this kind of work that there are environments for."""
        return [
            tool
            for tool in TOOLS.values()
            if work in tool.works
            and (not tool.package or tool.package in self.environments)
            and (not self.given.only or any(part in tool.name for part in self.given.only))
        ]

    def took(self, tool: Tool, work: str) -> list[float]:
        """Milliseconds of each step of one run, without the first."""
        is_slow = tool.is_slow and work == "tokens"
        steps = SLOW_STEPS if is_slow else self.given.steps
        with self._process(tool, work, "--steps", str(steps)) as (_, told):
            return list(json.loads(told)[WARM_UP:])

    def left(self, tool: Tool, work: str, steps: int, *more: str) -> str:
        """How many steps its reader finds after one run, or why it finds nothing."""
        try:
            with self._process(tool, work, "--steps", str(steps), *more) as (folder, _):
                time.sleep(self.given.settle_s if more else 0.0)
                with self._process(tool, work, "--count", folder=folder) as (_, told):
                    return told
        except Failed as error:
            return f"failed: {error}"

    @contextlib.contextmanager
    def _process(self, tool: Tool, work: str, *more: str, folder: Path | None = None) -> Iterator[tuple[Path, str]]:
        """Run the tool to its end; give its folder and what it told. What it leaves behind is ended after that."""
        python = self.environments[tool.package][0] if tool.package else sys.executable
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            told, output = Path(home) / "told", Path(home) / "output"
            folder = folder or Path(home) / "run"
            folder.mkdir(exist_ok=True)
            command = [python, "-P", Path(__file__).resolve(), "--tool", tool.name, "--work", work, *more]
            command += ["--folder", folder, "--told", told, "--pace-ms", str(self.given.pace_ms)]
            with output.open("w") as file:
                # A session of its own: a killed tool's helpers may never end. HOME: what a tool keeps there goes too.
                process = subprocess.Popen(
                    command,
                    stdout=file,
                    stderr=file,
                    cwd=folder,
                    env=os.environ | {"HOME": str(folder)},
                    start_new_session=True,
                )
                try:
                    code = process.wait(timeout=self.given.limit_s)
                except subprocess.TimeoutExpired:
                    code = None
            try:
                said = output.read_text(errors="replace").strip().splitlines()
                if code is None:
                    print(f"{tool.name}, {work}: not ended after {self.given.limit_s:g} s", flush=True)
                if code is None and not told.exists():
                    raise Failed(f"not done after {self.given.limit_s:g} s")
                if code not in (None, 0, -signal.SIGKILL):
                    raise Failed(said[-1] if said else f"exit {code}")
                for line in said:
                    if line.startswith("lost steps"):
                        print(f"{tool.name}: {line}")
                yield folder, told.read_text() if told.exists() else ""
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


# --- the tables -----------------------------------------------------------------------------------------------------


def costs(runner: Runner, work: str) -> None:
    """Print the table of one kind of work."""
    tools, rounds = runner.tools(work), runner.given.rounds
    took: dict[str, list[list[float]]] = {tool.name: [] for tool in tools}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for tool in tools if number % 2 == 0 else tools[::-1]:
            if tool.name not in failed:
                try:
                    took[tool.name].append(runner.took(tool, work))
                    median = statistics.median(took[tool.name][-1])
                    print(f"{work}, round {number + 1}, {tool.name}: {median:.3f} ms", file=sys.stderr, flush=True)
                except Failed as error:
                    failed[tool.name] = str(error)
    keeps = " keeps |" if work == "tokens" else ""
    print(
        f"\n| {work}: tool |{keeps} median ms | p99 ms | max ms | x memcpy | x entrostat: median (min to max) | steps |"
    )
    print(f"|---|{'---|' if keeps else ''}---|---|---|---|---|---|")
    for tool in tools:
        kept = f" {tool.keeps} |" if keeps else ""
        if tool.name in failed:
            print(f"| {tool.name} |{kept} failed: {failed[tool.name]} | | | | | |")
        else:
            print(f"| {tool.name} |{kept} {_row(took[tool.name], took)} |")
    _print_without_tokens(runner, work, 6)


def _row(own: list[list[float]], took: dict[str, list[list[float]]]) -> str:
    """Median, p99 (each the median over rounds), maximum, ratios of the rounds' medians, steps."""
    median = statistics.median(statistics.median(one) for one in own)
    p99 = statistics.median(statistics.quantiles(one, n=100, method="inclusive")[-1] for one in own)
    memcpy, ours = _ratios(own, took.get("floor: memcpy")), _ratios(own, took.get("entrostat"))
    to_memcpy = f"{statistics.median(memcpy):.1f}" if memcpy else "-"
    to_ours = f"{statistics.median(ours):.2f} ({min(ours):.2f} to {max(ours):.2f})" if ours else "-"
    most, steps = max(map(max, own)), sum(map(len, own))
    return f"{median:.3f} | {p99:.2f} | {most:.2f} | {to_memcpy} | {to_ours} | {steps}"


def _ratios(own: list[list[float]], others: list[list[float]] | None) -> list[float]:
    if not others:
        return []
    return [statistics.median(a) / statistics.median(b) for a, b in zip(own, others, strict=True)]


def survivors(runner: Runner, work: str) -> None:
    """Print how many steps are left after SIGKILL, right behind the last step's return, and after a proper end."""
    keeps, steps = " keeps |" if work == "tokens" else "", runner.given.steps
    print(f"\n| {work}: tool |{keeps} of {steps}, killed, one run each | of {CONTROL_STEPS}, ended properly |")
    print(f"|---|{'---|' if keeps else ''}---|---|")
    for tool in runner.tools(work):
        if tool.steps_left:
            count = SLOW_STEPS if tool.is_slow and work == "tokens" else steps
            left = [runner.left(tool, work, count, "--kill") for _ in range(runner.given.rounds)]
            said = ", ".join(left) + (f" of {count}" if count != steps else "")
            control = runner.left(tool, work, CONTROL_STEPS)
            print(f"| {tool.name} |{f' {tool.keeps} |' if keeps else ''} {said} | {control} |", flush=True)
    _print_without_tokens(runner, work, 2)


def _print_without_tokens(runner: Runner, work: str, cells: int) -> None:
    for tool in runner.tools("scalars") if work == "tokens" else ():
        if tool.no_tokens:
            print(f"| {tool.name} | no way: {tool.no_tokens} |{' |' * cells}")


def profile(work: str, steps: int, pace_s: float) -> None:
    """Print what the training thread's calls of our step spend their time in."""
    import cProfile
    import pstats

    made, profiler = blocks(), cProfile.Profile()
    numbers = dict.fromkeys(SCALAR_NAMES, 0.5)
    with tempfile.TemporaryDirectory() as folder, TOOLS["entrostat"].start(Path(folder), work) as log:
        for step in range(steps):
            if step < WARM_UP:
                log(step, numbers, made[step % BLOCKS])
            else:
                profiler.runcall(log, step, numbers, made[step % BLOCKS])
            time.sleep(pace_s)
    print(f"## {work}, {steps - WARM_UP} steps under cProfile, which makes Python's calls look dearer than they are")
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(14)


@contextlib.contextmanager
def hogs(number: int) -> Iterator[None]:
    """Processes that keep the cores busy meanwhile."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in started:
            process.kill()


def report(given: argparse.Namespace) -> None:
    """Measure every tool and print the tables."""
    environments = find(given.peers)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "pyarrow", "numpy", "duckdb")]
    versions += [f"{package} {version}" for package, (_, version) in environments.items()]
    print(f"load average at the start {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; {', '.join(versions)}")
    missing = {tool.package for tool in TOOLS.values() if tool.package} - environments.keys()
    if given.peers and missing:
        print(f"no environment of --peers has {', '.join(sorted(missing))}")
    left_out = "" if given.kill else f", the first {WARM_UP} steps of each left out"
    beside = f", beside {given.hogs} processes that do nothing but count" if given.hogs else ""
    print(f"a step each {given.pace_ms:g} ms, {given.rounds} rounds{left_out}{beside}", flush=True)
    with hogs(given.hogs):
        for work in (given.work,) if given.work else ("scalars", "tokens"):
            if given.profile:
                profile(work, given.steps, given.pace_ms / 1e3)
            else:
                (survivors if given.kill else costs)(Runner(given, environments), work)
                print(f"\nload average {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    """Measure every tool, or, in a process of its own, one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", type=Path, metavar="FOLDER", help="make the trackers' environments there, and end")
    parser.add_argument("--peers", type=Path, nargs="+", default=[], help="a folder of environments, or interpreters")
    parser.add_argument("--kill", action="store_true", help="what is left after SIGKILL, not the cost")
    parser.add_argument("--profile", action="store_true", help="where our own step spends the training thread's time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--pace-ms", type=float, default=50.0)
    parser.add_argument("--limit-s", type=float, default=180.0, help="one run of a tool is given up after this")
    settle = "after SIGKILL a tracker's helper process, which nobody killed, has this long to write on"
    parser.add_argument("--settle-s", type=float, default=2.0, help=settle)
    parser.add_argument("--work", choices=("scalars", "tokens"), help="one of the two; else both")
    parser.add_argument("--hogs", type=int, default=0, help="so many processes keep the cores busy meanwhile")
    parser.add_argument("--only", nargs="+", help="tools whose name has this in it")
    parser.add_argument("--tool", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--told", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.install:
        install(given.install)
    elif given.tool and given.count:
        found = TOOLS[given.tool].steps_left
        given.told.write_text(str(len(found(given.folder, given.work)) if found else 0))
    elif given.tool:
        pace_s = given.pace_ms / 1e3
        run_tool(TOOLS[given.tool], given.work, given.steps, pace_s, given.folder, given.told, given.kill)
    else:
        report(given)


if __name__ == "__main__":
    main()
