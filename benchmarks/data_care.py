"""How long batches wait while the database is copied, checked, thinned out by retention, and while a run is deleted.

A store of ten runs that have ended, with token rows of six measured values, and one live stream that sends a batch of
41 rows every 20 ms; for each thing that is done meanwhile, how long it took and what the batches waited. Beside it the
floor: ``shutil.copyfile`` of the same file, and the batches' wait when nothing is done.

    python -P benchmarks/data_care.py [--rows 5000000 50000000] [--steps-a-batch 24]

The runs' batches come in turn. With one step a batch (16,384 rows) rows of all runs share the blocks of the file, which
is what many runs at once leave, and what removing one of them costs most in.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import duckdb
import numpy as np
import pyarrow as pa

from entrostat.probe.rows import event_rows, metric_rows
from entrostat.storage.retention import Policy, Retention
from entrostat.storage.store import Store
from entrostat.storage.streams import utc_now
from entrostat.wire.mergeable import Part
from entrostat.wire.messages import StreamOpen
from entrostat.wire.tables import TOKEN

RUNS, STEP_ROWS = 10, 16_384


def token_table(random: np.random.Generator, num_steps: int) -> pa.Table:
    """Token rows of so many steps."""
    count = STEP_ROWS * num_steps
    logp, advantage = -random.exponential(0.6, count), random.normal(size=count)
    k = np.arange(count)
    columns = {
        "step": k // STEP_ROWS, "seq": k % STEP_ROWS // 256, "pos": k % 256,
        "token_id": random.zipf(1.3, count).clip(max=150_000), "logp": logp,
        "entropy": random.exponential(0.5, count), "advantage": advantage, "cov": logp * advantage,
        "ratio": np.exp(random.normal(0, 0.02, count)), "sum_p2": random.beta(4, 1, count),
        "reason": ["all"] * count, "prob": np.ones(count),
    }  # fmt: skip
    return pa.table(
        [pa.array(columns[f.name]).cast(f.type) if f.name in columns else pa.nulls(count, f.type) for f in TOKEN],
        schema=TOKEN,
    )


def filled(store: Store, num_rows: int, steps_a_batch: int) -> None:
    """Ten runs that have ended, with so many token rows together."""
    table = token_table(np.random.default_rng(0), steps_a_batch)
    batches = max(1, num_rows // RUNS // table.num_rows)
    streams = [f"{run + 1:032x}" for run in range(RUNS)]
    for run, stream in enumerate(streams):
        store.open_stream(stream, opening(f"run-{run}"))
    for seq in range(batches):
        steps = pa.compute.add(table["step"], pa.scalar(seq * steps_a_batch, pa.int32()))
        for stream in streams:
            store.add_batch(stream, seq, {"token": table.set_column(0, TOKEN.field("step"), steps)}, 1).result()
    for stream in streams:
        store.add_batch(stream, batches, {"event": event_rows("run_ended", "")}, 1).result()


def opening(run: str) -> StreamOpen:
    """A stream of a made-up run."""
    return StreamOpen(run_id=run, session_id=f"{abs(hash(run)):032x}"[-32:], started=datetime.now(UTC))


class Live:
    """A stream that sends while something is done; what its batches waited, in seconds."""

    def __init__(self, store: Store) -> None:
        self._store, self._seq = store, 0
        store.open_stream("f" * 32, opening("live"))
        self._parts = {f"signal_{k}": Part("mean", (1.0, 0.5)) for k in range(41)}

    def waits_during(self, action: Callable[[], object]) -> tuple[float, list[float]]:
        """Seconds of ``action``, and of each batch sent meanwhile."""
        waits: list[float] = []
        stop = threading.Event()
        thread = threading.Thread(target=self._send, args=(stop, waits))
        thread.start()
        began = time.perf_counter()
        action()
        took = time.perf_counter() - began
        stop.set()
        thread.join()
        return took, waits

    def _send(self, stop: threading.Event, waits: list[float]) -> None:
        while not stop.is_set():
            began = time.perf_counter()
            tables = {"step_metric": metric_rows(self._seq, self._parts)}
            self._store.add_batch("f" * 32, self._seq, tables, 1).result()
            waits.append(time.perf_counter() - began)
            self._seq += 1
            stop.wait(0.02)


def measure(num_rows: int, steps_a_batch: int) -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "entrostat.duckdb"
        with Store(f"duckdb://{path}", linger_s=0.0) as store:
            filled(store, num_rows, steps_a_batch)
            live = Live(store)
            retention = Retention(
                store._database, store._writer, store.delete_run, store._touch, lambda: utc_now() + timedelta(hours=2)
            )
            size = path.stat().st_size
            held: list[float] = []
            actions: dict[str, Callable[[], object]] = {
                "nothing, for 2 s": lambda: time.sleep(2),
                "shutil.copyfile of the file, by another process": lambda: copied(path, Path(folder) / "floor"),
                "backup": lambda: held.append(store.backups.make().held_s),
                "check": store.check,
                "delete one run": lambda: store.delete_run("run-0"),
                "retention: the token rows of nine runs": lambda: retention.apply(Policy(keep_token_days=0.04)),
                "retention: nine runs": lambda: retention.apply(Policy(keep_run_days=0.04)),
            }
            print(f"\n{num_rows:,} token rows, {size / 2**20:,.0f} MiB, {steps_a_batch} steps a batch\n")
            print("| what is done | seconds | batches meanwhile | their wait: median ms | longest ms |")
            print("|---|---|---|---|---|")
            for name, action in actions.items():
                took, waits = live.waits_during(action)
                median, longest = statistics.median(waits) * 1e3, max(waits) * 1e3
                print(f"| {name} | {took:.2f} | {len(waits)} | {median:.1f} | {longest:.0f} |", flush=True)
            store._writer.hold_still(lambda cursor: cursor.execute("checkpoint"))
            print(f"\nthe writer held still {held[0] * 1e3:.0f} ms for the backup")
            used, size = store.retention.used_bytes(), path.stat().st_size
            print(f"afterwards {used / 2**20:,.0f} MiB of the file are in use, it has {size / 2**20:,.0f}")


def copied(source: Path, target: Path) -> None:
    """In a child: closing the file here would drop the engine's lock on it."""
    child = os.fork()
    if child == 0:
        shutil.copyfile(source, target)
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000_000, 50_000_000])
    parser.add_argument("--steps-a-batch", type=int, default=24)
    given = parser.parse_args()
    print(f"load average at the start {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, duckdb {duckdb.__version__}")
    for num_rows in given.rows:
        measure(num_rows, given.steps_a_batch)
    print(f"\nload average at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
