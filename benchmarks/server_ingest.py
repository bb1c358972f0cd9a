"""What the server takes in: token rows a second over HTTP until they are on its disk, beside DuckDB's own bulk INSERT.

A real server in a process of its own gets batches as the probe makes them (40 signals, 16,384 token rows of six
measured values a step) from 1 and from 4 streams; a stream's next batch goes out when the one before is acknowledged,
and an acknowledgement comes after COMMIT. The peer, in the same round: ``INSERT ... SELECT`` of the same token rows, in
memory as one Arrow table, into a DuckDB file of the same columns, by one process, then CHECKPOINT. It has to decompress
nothing, check nothing, keep no ledger and share its time with no sender.

    python -P benchmarks/server_ingest.py [--rounds 3] [--steps 120] [--profile]

``--profile`` prints instead where the time goes between a batch's bytes and its COMMIT, in this process.
"""

import argparse
import contextlib
import cProfile
import os
import pstats
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

import duckdb
import numpy as np
import pyarrow as pa

from entrostat.probe.rows import metric_rows
from entrostat.storage import schema
from entrostat.storage.store import Store
from entrostat.wire import codec
from entrostat.wire.client import Client
from entrostat.wire.errors import Refused, ServerDown
from entrostat.wire.mergeable import Part
from entrostat.wire.messages import StreamOpen
from entrostat.wire.tables import TOKEN

SIGNALS, RESPONSES, LENGTH, KEPT_BLOCKS = 40, 64, 256, 8
STEP_ROWS = RESPONSES * LENGTH
QUESTIONS = {
    "series endpoint, 4 signals": lambda client, run: client.get(
        "/v1/series", run=run, name=[f"signal_{k}" for k in range(4)]
    ),
    "SQL, one signal": lambda client, run: client.sql(
        f"select step, signal_value from (select step, value as signal_value from step_metric "
        f"where run = '{run}' and name = 'signal_0') order by step"
    ),
    "SQL, tokens of one step": lambda client, run: client.sql(
        f"select token_id, sum(entropy / prob) s from token where run = '{run}' and step = 5 group by 1 "
        "order by s desc limit 10"
    ),
}


def token_table(step: int, random: np.random.Generator) -> pa.Table:
    """Every token of a step: the keys, and six measured values; what needs the candidates is null."""
    logp = -random.exponential(0.6, STEP_ROWS)
    advantage = np.repeat(random.normal(size=RESPONSES), LENGTH)
    columns = {
        "step": np.full(STEP_ROWS, step),
        "seq": np.repeat(np.arange(RESPONSES), LENGTH),
        "pos": np.tile(np.arange(LENGTH), RESPONSES),
        "token_id": random.zipf(1.3, STEP_ROWS).clip(max=150_000),
        "logp": logp,
        "entropy": random.exponential(0.5, STEP_ROWS),
        "advantage": advantage,
        "cov": (logp - logp.mean()) * (advantage - advantage.mean()),
        "ratio": np.exp(random.normal(0, 0.02, STEP_ROWS)),
        "sum_p2": random.beta(4, 1, STEP_ROWS),
        "reason": ["all"] * STEP_ROWS,
        "prob": np.ones(STEP_ROWS),
    }
    arrays = [
        pa.array(columns[field.name]).cast(field.type) if field.name in columns else pa.nulls(STEP_ROWS, field.type)
        for field in TOKEN
    ]
    return pa.table(arrays, schema=TOKEN)


class Work:
    """The batches of a round, made in advance, and the same rows as tables.

    Args:
        steps: in all; each stream sends its share.
        steps_a_batch: steps that a sender coalesces (it lingers for half a second).
    """

    def __init__(self, steps: int, steps_a_batch: int) -> None:
        random = np.random.default_rng(0)
        drawn = [token_table(0, random) for _ in range(KEPT_BLOCKS)]
        self.tokens = [self._at(drawn[step % KEPT_BLOCKS], step) for step in range(steps)]
        self.bodies = []
        for first in range(0, steps, steps_a_batch):
            span = range(first, min(first + steps_a_batch, steps))
            parts = {f"signal_{k}": Part("mean", (1.0, float(random.random()))) for k in range(SIGNALS)}
            metrics = pa.concat_tables([metric_rows(step, parts) for step in span])
            tokens = pa.concat_tables([self.tokens[step] for step in span])
            self.bodies.append(codec.encode({"step_metric": metrics, "token": tokens}))
        self.num_rows = STEP_ROWS * steps

    @staticmethod
    def _at(table: pa.Table, step: int) -> pa.Table:
        return table.set_column(0, TOKEN.field("step"), pa.array(np.full(table.num_rows, step, np.int32)))


@contextlib.contextmanager
def serving(folder: str) -> Iterator[Client]:
    """The real server in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "entrostat.server", "--port", str(port), "--data", folder]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = Client(f"http://127.0.0.1:{port}")
    try:
        for _ in range(300):
            with contextlib.suppress(ServerDown):
                client.health()
                break
            time.sleep(0.1)
        else:
            raise SystemExit("the server did not start")
        yield client
    finally:
        server.terminate()
        server.wait(60)


def sent(client: Client, work: Work, num_streams: int, run: str) -> float:
    """Seconds from the first batch sent to the last acknowledgement."""
    streams = [f"{abs(hash((run, k))):032x}"[-32:] for k in range(num_streams)]
    for rank, stream in enumerate(streams):
        client.open_stream(stream, opening(run, rank, num_streams))
    shares = [work.bodies[k::num_streams] for k in range(num_streams)]
    url = str(client.url)

    def send(stream: str, bodies: list[bytes]) -> None:
        with Client(url) as own:
            for seq, body in enumerate(bodies):
                own.post_batch(stream, seq, body)

    threads = [threading.Thread(target=send, args=pair) for pair in zip(streams, shares, strict=True)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def opening(run: str, rank: int, world_size: int) -> StreamOpen:
    """A rank of a made-up run."""
    return StreamOpen(
        run_id=run,
        session_id=f"{abs(hash(run)):032x}"[-32:],
        rank=rank,
        world_size=world_size,
        started=datetime.now(UTC),
    )


def bulk(folder: Path, work: Work) -> tuple[float, int]:
    """Seconds of one INSERT of all token rows, COMMIT and CHECKPOINT; bytes of the file."""
    path = folder / "bulk.duckdb"
    rows = pa.concat_tables(work.tokens)
    keys = {"run", "stream", "batch_seq", "line", "received"}
    columns = [c for c in schema.ROW_TABLES["token"].columns if c.name not in keys]
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        kinds = ", ".join(f'"{c.name}" {c.kind}' for c in columns)
        connection.execute(f"create table token ({kinds})")
        names = ", ".join(f'"{c.name}"' for c in columns)
        connection.register("_rows", rows)
        began = time.perf_counter()
        connection.execute(f"insert into token select {names} from _rows")
        connection.execute("checkpoint")
        took = time.perf_counter() - began
    return took, path.stat().st_size


def ingest(rounds: int, work: Work) -> None:
    """Print rows a second, ratios and bytes a row."""
    wire = sum(len(body) for body in work.bodies) / work.num_rows
    print(f"{work.num_rows} token rows, {len(work.bodies)} batches, {wire:.1f} bytes a row on the wire")
    found: dict[str, list[tuple[float, float, float]]] = {}
    for number in range(rounds):
        order = ["bulk", 1, 4] if number % 2 == 0 else [4, 1, "bulk"]
        took: dict[object, tuple[float, float]] = {}
        for what in order:
            with tempfile.TemporaryDirectory() as folder:
                if what == "bulk":
                    seconds, size = bulk(Path(folder), work)
                else:
                    with serving(folder) as client:
                        seconds = sent(client, work, int(what), f"run-{what}")
                    size = sum(f.stat().st_size for f in Path(folder).glob("entrostat.duckdb*"))
                took[what] = seconds, size
        for what, (seconds, size) in took.items():
            name = "DuckDB bulk INSERT, in process" if what == "bulk" else f"HTTP to durable, {what} stream(s)"
            ratio = seconds / took["bulk"][0]
            found.setdefault(name, []).append((work.num_rows / seconds, ratio, size / work.num_rows))
    print("| way | token rows/s: median | time x bulk: median (min to max) | bytes a token row on disk, all tables |")
    print("|---|---|---|---|")
    for name in sorted(found):
        rate, ratios, size = (sorted(column) for column in zip(*found[name], strict=True))
        middle = statistics.median(ratios)
        print(
            f"| {name} | {statistics.median(rate):,.0f} | {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) "
            f"| {statistics.median(size):.1f} |"
        )


def latency(work: Work, rounds: int) -> None:
    """Print what a reader waits for while two streams send, and when nobody does, in turn."""
    took: dict[tuple[str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, serving(folder) as client:
        sent(client, work, 2, "watched")
        for number in range(rounds):
            for busy in (number % 2 == 0, number % 2 == 1):
                sender = threading.Thread(target=sent, args=(client, work, 2, f"other-{number}"))
                if busy:
                    sender.start()
                for _ in range(12):
                    for name, ask in QUESTIONS.items():
                        seconds = _timed(lambda ask=ask: ask(client, "watched"))  # type: ignore[misc]
                        if not busy or sender.is_alive():
                            took.setdefault((name, busy), []).append(seconds * 1e3)
                if busy:
                    sender.join()
    print("\n| question | idle: median (p95) ms | while two streams send: median (p95) ms | ratio of medians |")
    print("|---|---|---|---|")
    for name in QUESTIONS:
        idle, busy_ms = took[name, False], took[name, True]
        ratio = statistics.median(busy_ms) / statistics.median(idle)
        print(f"| {name} | {_spread(idle)} | {_spread(busy_ms)} | {ratio:.1f} |")


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    try:
        action()
    except Refused as error:
        raise SystemExit(f"a question was refused: {error}") from error
    return time.perf_counter() - began


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):.1f} ({ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]:.1f})"


class _Timed:
    """A cursor that notes how long its statements take."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self.took: dict[str, list[float]] = {}

    def execute(self, sql: str, *more: object) -> duckdb.DuckDBPyConnection:
        return self._noted(" ".join(sql.split()[:3]), self._cursor.execute, sql, *more)

    def register(self, *given: object) -> duckdb.DuckDBPyConnection:
        return self._noted("(register a table)", self._cursor.register, *given)

    def _noted(self, what: str, action: Callable[..., duckdb.DuckDBPyConnection], *given: object) -> Any:
        began = time.perf_counter()
        try:
            return action(*given)
        finally:
            self.took.setdefault(what, []).append(time.perf_counter() - began)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def profile(work: Work) -> None:
    """Print the decoding thread's profile, and the writer's statements by their time, beside the bulk INSERT."""
    decoder = cProfile.Profile()
    began = time.perf_counter()
    decoded = [decoder.runcall(codec.decode, body) for body in work.bodies]
    decode_s = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder, Store(f"duckdb://{folder}/store.duckdb", linger_s=0.0) as store:
        writer = store._writer
        plain, profiler = writer._commit_all, cProfile.Profile()
        writer._commit_all = lambda taken: profiler.runcall(plain, taken)  # type: ignore[method-assign]
        writer._cursor = statements = _Timed(writer._cursor)  # type: ignore[assignment]  # in its place
        store.open_stream("0" * 32, opening("profiled", 0, 1))
        began = time.perf_counter()
        for seq, tables in enumerate(decoded):
            store.add_batch("0" * 32, seq, tables, len(work.bodies[seq])).result(120)
        write_s = time.perf_counter() - began
        bulk_s, _ = bulk(Path(folder), work)
    print(f"decode {decode_s:.2f} s, write {write_s:.2f} s, bulk INSERT {bulk_s:.2f} s of {work.num_rows} token rows\n")
    for statement, took in sorted(statements.took.items(), key=lambda item: -sum(item[1]))[:6]:
        median_ms = statistics.median(took) * 1e3
        print(f"{statement:40s} {len(took):4d} times, {sum(took):.2f} s, median {median_ms:.1f} ms")
    print()
    for title, one in (("decode", decoder), ("write", profiler)):
        print(f"## {title}")
        pstats.Stats(one).strip_dirs().sort_stats("tottime").print_stats(12)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--steps-a-batch", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="where the time goes, in this process")
    given = parser.parse_args()
    print(f"load average at the start {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, duckdb {duckdb.__version__}")
    work = Work(given.steps, given.steps_a_batch)
    if given.profile:
        profile(work)
    else:
        ingest(given.rounds, work)
        latency(work, given.rounds)
    print(f"\nload average at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
