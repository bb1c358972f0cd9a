"""How long a batch waits for its acknowledgement with and without a selection over the whole step, in pairs.

A real server in a process of its own and four ranks that send a step's signals and histograms in turn, over HTTP. Both
runs of a pair get the same batches, one after the other; only one has an intervention that asks for thresholds.

    python -P benchmarks/ack_with_thresholds.py [--steps 150] [--pairs 4]
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa

from entrostat.probe.rows import metric_rows
from entrostat.wire import codec
from entrostat.wire.bins import histogram_of
from entrostat.wire.client import Client
from entrostat.wire.errors import ServerDown
from entrostat.wire.mergeable import Part
from entrostat.wire.messages import Permissions, StreamOpen
from entrostat.wire.tables import HISTOGRAM

RANKS, SIGNALS, TOKENS = 4, 40, 4000
SELECTING = {"scope": {}, "kl_cov": {}, "forking_tokens": {}}


def main() -> None:
    """Print a table of the pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--pairs", type=int, default=4)
    given = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "entrostat.server", "--port", str(port), "--data", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _measure(Client(f"http://127.0.0.1:{port}"), given.steps, given.pairs)
        finally:
            if server.poll() is not None:
                print(f"the server ended by itself: {server.returncode}", file=sys.stderr)
            server.terminate()
            server.wait(30)


def _measure(client: Client, steps: int, pairs: int) -> None:
    _wait_for(client)
    print("| pair | without: median ms | with: median ms | ratio | steps that thresholds are behind: median |")
    print("|---|---|---|---|---|")
    ratios = []
    for pair in range(pairs):
        took: dict[bool, float] = {}
        behind = 0.0
        for asks in (pair % 2 == 0, pair % 2 == 1):
            took[asks], lag = _run(client, f"pair{pair}-{'with' if asks else 'without'}", steps, asks)
            behind = lag if asks else behind
        ratios.append(took[True] / took[False])
        print(f"| {pair} | {took[False]:.1f} | {took[True]:.1f} | {ratios[-1]:.2f} | {behind:.0f} |", flush=True)
    print(f"\nmedian ratio {statistics.median(ratios):.2f}")


def _run(client: Client, name: str, steps: int, asks: bool) -> tuple[float, float]:
    """Median milliseconds to an acknowledgement, and how many steps old its thresholds are."""
    streams = [f"{abs(hash((name, rank))):032x}"[-32:] for rank in range(RANKS)]
    for rank, stream in enumerate(streams):
        client.open_stream(stream, _opening(name, rank))
    if asks:
        for method in SELECTING:
            client.switch_on(name, method, "a measurement", person="bench", selection="step")
    random, took, behind = np.random.default_rng(0), [], []
    for step in range(steps):
        bodies = [_body(step, random) for _ in range(RANKS)]
        for stream, body in zip(streams, bodies, strict=True):
            began = time.perf_counter()
            ack = client.post_batch(stream, step, body)
            took.append(1e3 * (time.perf_counter() - began))
            if ack.thresholds is not None:
                behind.append(step - ack.thresholds.step)
    return statistics.median(took), statistics.median(behind) if behind else float("nan")


def _opening(name: str, rank: int) -> StreamOpen:
    return StreamOpen(
        run_id=name,
        session_id=f"{abs(hash(name)):032x}"[-32:],
        rank=rank,
        world_size=RANKS,
        started=datetime.now(UTC),
        permissions=Permissions(mode="advise", allow=list(SELECTING)),
    )


def _body(step: int, random: np.random.Generator) -> bytes:
    parts = {f"signal_{k}": Part("mean", (1.0, float(random.random()))) for k in range(SIGNALS)}
    values = {"entropy": random.exponential(0.5, TOKENS), "cov_token": random.normal(0, 1, TOKENS)}
    values["scope_score"] = random.uniform(0, 0.25, TOKENS) * (random.random(TOKENS) < 0.5)
    rows = [
        {"step": step, "name": name, "bin": int(i), "count": int(c), "total": float(t)}
        for name, value in values.items()
        for i, c, t in zip(*histogram_of(value), strict=True)
    ]
    return codec.encode(
        {"step_metric": metric_rows(step, parts), "histogram": pa.Table.from_pylist(rows, schema=HISTOGRAM)}
    )


def _wait_for(client: Client) -> None:
    for _ in range(300):
        try:
            client.health()
            return
        except ServerDown:
            time.sleep(0.1)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
