"""32 runs at once into one server: what it takes, what the person at the dashboard waits for, what memory it needs.

Each run is a real sender (queue, spool, uplink) in one of four producing processes; a step is 40 signals and 4,096
token rows. In turn: every run makes a step a second; the same while people run heavy SQL; the server stands still while
every run goes on (SIGSTOP), and has it all to take at once; everybody is done. In the end every row is counted.

    python -P benchmarks/load.py [--runs 32] [--seconds 20] [--rows 4096] [--queue-mb 64]
"""

import argparse
import contextlib
import functools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import httpx
import numpy as np
import pyarrow as pa

from entrostat.probe.rows import metric_rows
from entrostat.wire.client import Client
from entrostat.wire.errors import Refused, ServerDown
from entrostat.wire.mergeable import Part
from entrostat.wire.messages import StreamOpen
from entrostat.wire.sender import Sender
from entrostat.wire.tables import TOKEN

PRODUCERS, SIGNALS, LENGTH = 4, 40, 256
HEAVY = "select token_id, count(*) n, quantile_cont(entropy, 0.5) m, avg(logp) a from token group by 1 order by m desc"
QUESTIONS: dict[str, Callable[[Client, str], object]] = {
    "list of runs": lambda client, run: client.get("/v1/runs", limit=50),
    "one run": lambda client, run: client.run(run),
    "4 curves": lambda client, run: client.get("/v1/series", run=run, name=[f"signal_{k}" for k in range(4)]),
    "events": lambda client, run: client.get(f"/v1/runs/{run}/events"),
    "SQL, tokens of one step": lambda client, run: client.sql(
        f"select token_id, sum(entropy / prob) s from token where run = '{run}' and step = 3 group by 1 order by s desc"
    ),
}


# --- producing processes


def token_rows(step: int, rows: int, random: np.random.Generator) -> pa.Table:
    """All tokens of a step."""
    columns = {
        "step": np.full(rows, step), "seq": np.arange(rows) // LENGTH, "pos": np.arange(rows) % LENGTH,
        "token_id": random.zipf(1.3, rows).clip(max=150_000), "logp": -random.exponential(0.6, rows),
        "entropy": random.exponential(0.5, rows), "advantage": random.normal(size=rows),
        "reason": ["all"] * rows, "prob": np.ones(rows),
    }  # fmt: skip
    arrays = [
        pa.array(columns[field.name]).cast(field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in TOKEN
    ]
    return pa.table(arrays, schema=TOKEN)


def produce(url: str, spool: str, runs: list[str], rows: int) -> None:
    """Do as stdin says: ``pace SECONDS`` makes steps at that pace (0: none), ``end`` flushes and tells the counts."""
    random = np.random.default_rng(0)
    block = token_rows(0, rows, random)
    parts = {f"signal_{k}": Part("mean", (1.0, float(random.random()))) for k in range(SIGNALS)}
    senders = [
        Sender(StreamOpen(run_id=run, session_id=os.urandom(16).hex(), started=datetime.now(UTC)), url=url, token=None,
               root=Path(spool))
        for run in runs
    ]  # fmt: skip

    def tables(step: int) -> dict[str, pa.Table]:
        """As ``reduce`` makes them: called on the sender's own thread."""
        tokens = block.set_column(0, TOKEN.field("step"), pa.array(np.full(rows, step, np.int32)))
        return {"step_metric": metric_rows(step, parts), "token": tokens}

    pace, is_over, slowest, steps = [0.0], threading.Event(), [0.0], [0]

    def listen() -> None:
        for line in sys.stdin:
            word, *given = line.split()
            if word == "pace":
                pace[0] = float(given[0])
            else:
                is_over.set()
                return

    threading.Thread(target=listen, daemon=True).start()
    due = time.monotonic()
    while not is_over.is_set():
        if not pace[0] or time.monotonic() < due:
            time.sleep(0.005)
            continue
        due = max(due + pace[0], time.monotonic() - 1.0)
        steps[0] += 1
        for sender in senders:
            began = time.perf_counter()
            sender.put(functools.partial(tables, steps[0]), block.nbytes, token_rows=rows)
            slowest[0] = max(slowest[0], time.perf_counter() - began)
    began = time.perf_counter()
    flushed = [sender.flush(300) for sender in senders]
    counters = [sender.counters for sender in senders]
    told = {
        "steps": steps[0], "is_sent": all(flushed), "drain_s": time.perf_counter() - began,
        "slowest_put_ms": slowest[0] * 1e3,
        "batches": sum(c.batches_acked for c in counters), "retries": sum(c.retries for c in counters),
        "duplicates": sum(c.duplicates for c in counters), "dropped": sum(c.dropped_items for c in counters),
        "dropped_rows": sum(c.dropped_token_rows for c in counters), "rejected": sum(c.rejected for c in counters),
    }  # fmt: skip
    for sender in senders:
        sender.close(10)
    print(json.dumps(told), flush=True)


# --- who watches


class Watched:
    """The real server in a process of its own, and what it says of itself."""

    def __init__(self, folder: str, queue_mb: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "entrostat.server", "--port", str(port), "--data", folder]
        environment = os.environ | {"ENTROSTAT_SERVER_MAX_QUEUE_MB": str(queue_mb)}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        self.url = f"http://127.0.0.1:{port}"
        self.client = Client(self.url, timeout_s=120)
        for _ in range(600):
            with contextlib.suppress(ServerDown):
                self.client.health()
                return
            time.sleep(0.1)
        raise SystemExit("the server did not start")

    def meter(self, name: str) -> float:
        """A value of its page for Prometheus; the sum of a family."""
        lines = httpx.get(f"{self.url}/metrics", timeout=120, trust_env=False).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def memory_mb(self, field: str) -> float:
        """VmRSS: now; VmHWM: the most there ever was."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
        raise SystemExit(f"no {field}")


class Phase:
    """A stretch of time: what was stored in it, and how long each question took."""

    def __init__(self, name: str) -> None:
        self.name, self.took_ms = name, {question: [] for question in QUESTIONS}  # type: dict[str, list[float]]
        self.refused, self.rows, self.seconds, self.queue_mb, self.memory_mb = 0, 0.0, 0.0, 0.0, 0.0
        self.heavy: list[float] = []

    def watch(self, server: Watched, run: str, seconds: float) -> None:
        """Ask as a page with four charts does, for ``seconds``."""
        began, rows = time.monotonic(), server.meter("entrostat_rows_total")
        while time.monotonic() < began + seconds:
            for name, ask in QUESTIONS.items():
                asked = time.perf_counter()
                try:
                    ask(server.client, run)
                except Refused as error:
                    if error.status != 503:
                        raise
                    self.refused += 1
                    continue
                self.took_ms[name].append((time.perf_counter() - asked) * 1e3)
            self.queue_mb = max(self.queue_mb, server.meter("entrostat_queue_bytes") / 2**20)
            self.memory_mb = max(self.memory_mb, server.memory_mb("VmRSS"))
            time.sleep(0.25)
        self.seconds = time.monotonic() - began
        self.rows = server.meter("entrostat_rows_total") - rows

    def line(self, idle: "Phase | None") -> str:
        """A row of the table."""
        cells = [self.name, f"{self.rows / self.seconds:,.0f}", f"{self.queue_mb:.0f}", f"{self.memory_mb:.0f}"]
        for name, took in self.took_ms.items():
            ordered = sorted(took)
            if not ordered:
                cells.append("-")
                continue
            middle, p95 = statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
            ratio = f" ({middle / statistics.median(idle.took_ms[name]):.1f} x)" if idle else ""
            cells.append(f"{middle:.0f} / {p95:.0f}{ratio}")
        return "| " + " | ".join(cells) + " |"


@contextlib.contextmanager
def heavy_sql(server: Watched, phase: Phase, people: int) -> Iterator[None]:
    """So many people ask for all tokens again and again."""
    is_over = threading.Event()

    def ask() -> None:
        with Client(server.url, timeout_s=120) as own:
            while not is_over.is_set():
                began = time.perf_counter()
                try:
                    own.sql(HEAVY, max_rows=10)
                    phase.heavy.append(time.perf_counter() - began)
                except Refused:
                    time.sleep(0.5)

    threads = [threading.Thread(target=ask) for _ in range(people)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def counted(server: Watched, rows: int) -> dict[str, Any]:
    """What the store has."""
    steps, _ = server.client.sql("select run, count(distinct step) s, count(*) n from token group by run", 10_000)
    metrics, _ = server.client.sql("select count(*) n from step_metric where starts_with(name, 'signal_')")
    held = steps.to_pylist()
    assert all(run["n"] == run["s"] * rows for run in held)
    return {
        "runs": len(held),
        "steps": sum(run["s"] for run in held),
        "token_rows": sum(run["n"] for run in held),
        "signal_rows": metrics.to_pylist()[0]["n"],
    }


def main() -> None:
    """Print the table and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--rows", type=int, default=4096, help="token rows a step")
    parser.add_argument("--queue-mb", type=int, default=64, help="what the server lets wait")
    parser.add_argument("--producer", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.producer:
        url, spool, *runs = given.producer
        produce(url, spool, runs, given.rows)
        return
    print(f"load average at the start {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        load(given, folder)


class Producers:
    """The producing processes."""

    def __init__(self, url: str, spool: str, runs: list[str], rows: int) -> None:
        command = [sys.executable, "-P", __file__, "--rows", str(rows), "--producer", url, spool]
        self._processes = [
            subprocess.Popen([*command, *runs[k::PRODUCERS]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for k in range(PRODUCERS)
        ]

    def say(self, line: str) -> None:
        """The same to all."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def end(self) -> list[dict[str, Any]]:
        """What each has to tell, once everything of it is sent."""
        self.say("end")
        return [json.loads(process.stdout.readline()) for process in self._processes if process.stdout is not None]

    def kill(self) -> None:
        """Where it went wrong."""
        for process in self._processes:
            process.kill()


def load(given: argparse.Namespace, folder: str) -> None:
    """All phases."""
    runs = [f"run-{k}" for k in range(given.runs)]
    server = Watched(f"{folder}/data", given.queue_mb)
    producers = Producers(server.url, f"{folder}/spool", runs, given.rows)
    try:
        phases, heavy_s = phases_of(server, producers, runs, given.seconds)
        told = producers.end()
        busy = server.meter('entrostat_refused_requests_total{code="busy"}')
        idle = Phase("idle")
        idle.watch(server, runs[0], given.seconds / 2)
        report(server, [*phases, idle], heavy_s, busy, given.queue_mb)
        compare(server, told, given)
    finally:
        producers.kill()
        server.process.terminate()
        server.process.wait(120)


def phases_of(
    server: Watched, producers: Producers, runs: list[str], seconds: float
) -> tuple[list[Phase], list[float]]:
    """The busy ones, and how long each heavy question took."""
    names = ("a step a second each", "the same, 4 people's heavy SQL", "after standing still")
    steady, heavy, burst = (Phase(name) for name in names)
    producers.say("pace 1.0")
    while len(server.client.runs()) < len(runs) or (server.client.run(runs[0])["last_step"] or 0) < 5:
        time.sleep(0.5)
    steady.watch(server, runs[0], seconds)
    with heavy_sql(server, heavy, people=4):
        heavy.watch(server, runs[0], seconds)
    server.process.send_signal(signal.SIGSTOP)
    producers.say("pace 0.5")
    time.sleep(seconds / 2)
    server.process.send_signal(signal.SIGCONT)
    producers.say("pace 1.0")
    burst.watch(server, runs[0], seconds)
    return [steady, heavy, burst], heavy.heavy


def report(server: Watched, phases: list[Phase], heavy_s: list[float], busy: float, queue_mb: int) -> None:
    """Print what each phase was like."""
    asked = " | ".join(f"{name}, ms" for name in QUESTIONS)
    print(f"| phase | rows/s | queue MB | RSS MB | {asked} |\n|{'---|' * (4 + len(QUESTIONS))}")
    for phase in phases:
        print(phase.line(None if phase is phases[-1] else phases[-1]))
    refused, peak_mb = sum(phase.refused for phase in phases), server.memory_mb("VmHWM")
    print(f"\nheavy SQL meanwhile: {len(heavy_s)} answers, median {statistics.median(heavy_s):.1f} s")
    print(f"the page's questions refused, because as many ran as may (503): {refused}")
    print(f"batches refused for want of room (503 with Retry-After, sent again by the sender): {busy:.0f}")
    print(f"most memory of the server: {peak_mb:.0f} MB (its engine may have 4,096, its queue {queue_mb})")


def compare(server: Watched, told: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """Count every row. Raises SystemExit where one is missing."""
    put = sum(one["steps"] for one in told) * given.runs // PRODUCERS
    held = counted(server, given.rows)
    right = {"runs": given.runs, "steps": put, "token_rows": put * given.rows, "signal_rows": put * SIGNALS}
    sums = {key: sum(one[key] for one in told) for key in ("batches", "retries", "duplicates", "dropped", "rejected")}
    print(f"slowest put of {put} on a producing thread: {max(one['slowest_put_ms'] for one in told):.1f} ms")
    print(f"senders: {json.dumps(sums)}; all was sent {max(one['drain_s'] for one in told):.1f} s after the last step")
    print(f"stored: {json.dumps(held)}")
    if held != right or not all(one["is_sent"] for one in told):
        raise SystemExit(f"NOT all of it is there: expected {right}, senders say {told}")
    print("every row is there, once")


if __name__ == "__main__":
    main()
