"""What an export and an import of a run cost: token rows a second, bytes a token row, memory of server and client.

A real server in a process of its own holds a run of many token rows (all measured columns, candidates for a quarter of
them). In each round the run is exported over HTTP to a tar and imported by a second server, beside DuckDB's own ways in
the same round: ``COPY ... TO`` a zstd Parquet file, and ``INSERT ... SELECT`` from that file with COMMIT and
CHECKPOINT, in process, with nothing sent, hashed, checked or given new keys. Memory is the highest that a process held.

    python -P benchmarks/export_run.py [--steps 360] [--rounds 3]
    python -P benchmarks/export_run.py --encodings
"""

import argparse
import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from entrostat.storage.exports import parquet_file
from entrostat.storage.exports.layout import ROWS_A_GROUP
from entrostat.storage.store import Store
from entrostat.wire.errors import ServerDown
from entrostat.wire.messages import StreamOpen
from entrostat.wire.tables import TOKEN
from entrostat.wire.transfer import TransferClient

RESPONSES, LENGTH = 64, 256
STEP_ROWS = RESPONSES * LENGTH
STEPS_A_BATCH = 15
CLIENT = """
import sys
from pathlib import Path
from entrostat.wire.transfer import TransferClient
with TransferClient(sys.argv[2]) as client:
    client.export_run("run", Path(sys.argv[3])) if sys.argv[1] == "export" else client.import_run(Path(sys.argv[3]))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def token_table(step: int, random: np.random.Generator) -> pa.Table:
    """Every token of a step as a probe sends it."""
    n = STEP_ROWS
    logp = -random.exponential(0.6, n)
    advantage = np.repeat(random.normal(size=RESPONSES), LENGTH)
    has_candidates = random.random(n) < 0.25
    offsets = np.concatenate([[0], np.cumsum(has_candidates * 8)]).astype(np.int32)
    ids = random.zipf(1.3, offsets[-1]).clip(max=150_000).astype(np.int32)
    logps = -np.sort(random.exponential(2.0, (offsets[-1] // 8, 8)), axis=1).ravel().astype(np.float32)
    columns = {
        "step": np.full(n, step),
        "seq": np.repeat(np.arange(RESPONSES), LENGTH),
        "pos": np.tile(np.arange(LENGTH), RESPONSES),
        "token_id": random.zipf(1.3, n).clip(max=150_000),
        "logp": logp,
        "entropy": random.exponential(0.5, n),
        "advantage": advantage,
        "cov": (logp - logp.mean()) * (advantage - advantage.mean()),
        "ratio": np.exp(random.normal(0, 0.02, n)),
        "rank": np.minimum(random.geometric(0.7, n), 9),
        "sum_p2": random.beta(4, 1, n),
        "support95": np.minimum(random.geometric(0.4, n), 9),
        "self_certainty": random.gamma(9, 1.5, n),
        "logsumexp": random.normal(20, 4, n),
        "reason": np.where(has_candidates, "cov", "uniform"),
        "prob": np.where(has_candidates, 1.0, 0.25),
        "top_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids)),
        "top_logps": pa.ListArray.from_arrays(pa.array(offsets), pa.array(logps)),
    }
    arrays = [
        pa.array(columns[field.name]).cast(field.type) if field.name in columns else pa.nulls(n, field.type)
        for field in TOKEN
    ]
    return pa.table(arrays, schema=TOKEN)


def filled(path: Path, steps: int) -> None:
    """A database with a run of so many steps."""
    random = np.random.default_rng(0)
    with Store(f"duckdb://{path}") as store:
        stream = uuid.uuid4().hex
        opening = StreamOpen(run_id="run", session_id=uuid.uuid4().hex, started=datetime.now(UTC))
        store.open_stream(stream, opening)
        for seq, first in enumerate(range(0, steps, STEPS_A_BATCH)):
            span = range(first, min(first + STEPS_A_BATCH, steps))
            tokens = pa.concat_tables([token_table(step, random) for step in span])
            store.add_batch(stream, seq, {"token": tokens}, tokens.nbytes).result()


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """(address, process) of a real server."""
    command = [sys.executable, "-m", "entrostat.server", "--port", "0", "--data", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[3]
        for _ in range(300):
            with contextlib.suppress(ServerDown), TransferClient(url) as client:
                client.health()
                break
            time.sleep(0.1)
        yield url, server.pid
    finally:
        server.terminate()
        server.wait(60)


def memory_mb(pid: int, what: str) -> float:
    """MiB of a process: VmRSS now, VmHWM at its highest."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"no {what}")


def moved(what: str, url: str, pid: int, tar: Path) -> tuple[float, float, float]:
    """Seconds of a transfer, MiB that the server grew by, MiB of the client."""
    before, began = memory_mb(pid, "VmRSS"), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, what, url, str(tar)], check=True, capture_output=True, text=True
    )
    took = time.perf_counter() - began
    return took, memory_mb(pid, "VmHWM") - before, int(done.stdout) / 1024


def engine(folder: Path, database: Path) -> dict[str, float]:
    """Seconds of DuckDB's own COPY and INSERT, and the bytes of its Parquet file."""
    parquet, target = folder / "own.parquet", folder / "own.duckdb"
    with contextlib.closing(duckdb.connect(str(database), read_only=True)) as connection:
        began = time.perf_counter()
        connection.execute(f"copy raw.token_row to '{parquet}' (format parquet, compression zstd)")
        copied = time.perf_counter() - began
        ddl = connection.execute("select sql from duckdb_tables() where table_name = 'token_row'").fetchall()[0][0]
    with contextlib.closing(duckdb.connect(str(target))) as connection:
        connection.execute("create schema raw")
        connection.execute(ddl)
        began = time.perf_counter()
        connection.execute(f"insert into raw.token_row select * from '{parquet}'")
        connection.execute("checkpoint")
        inserted = time.perf_counter() - began
    return {"copy": copied, "insert": inserted, "bytes": parquet.stat().st_size}


def transfers(steps: int, rounds: int) -> None:
    """Print the table."""
    rows = steps * STEP_ROWS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source" / "entrostat.duckdb"
        filled(source, steps)
        found: dict[str, list[tuple[float, float]]] = {}
        memory: dict[str, list[tuple[float, float]]] = {}
        for number in range(rounds):
            tar, target = folder / f"{number}.tar", folder / f"target-{number}"
            with serving(source.parent) as (url, pid):
                out_s, *out_mb = moved("export", url, pid, tar)
            with serving(target) as (url, pid):
                in_s, *in_mb = moved("import", url, pid, tar)
            own = engine(folder, source)
            (folder / "own.duckdb").unlink()
            for what, seconds, floor in (
                ("DuckDB COPY TO Parquet", own["copy"], own["copy"]),
                ("export over HTTP to a tar", out_s, own["copy"]),
                ("DuckDB INSERT from Parquet", own["insert"], own["insert"]),
                ("import over HTTP until durable", in_s, own["insert"]),
            ):
                found.setdefault(what, []).append((rows / seconds, seconds / floor))
            memory.setdefault("export", []).append((out_mb[0], out_mb[1]))
            memory.setdefault("import", []).append((in_mb[0], in_mb[1]))
            sizes = source.stat().st_size, tar.stat().st_size, own["bytes"]
            tar.unlink()
        print(f"{rows} token rows\n")
        print("| way | token rows/s: median | time x DuckDB's own: median (min to max) |\n|---|---|---|")
        for what, pairs in found.items():
            rate, ratio = zip(*pairs, strict=True)
            middle = statistics.median(ratio)
            print(f"| {what} | {statistics.median(rate):,.0f} | {middle:.2f} ({min(ratio):.2f} to {max(ratio):.2f}) |")
        print("\n| | bytes a token row | x the database |\n|---|---|---|")
        for what, size in zip(("database file", "export", "DuckDB's COPY"), sizes, strict=True):
            print(f"| {what} | {size / rows:.1f} | {size / sizes[0]:.2f} |")
        print("\n| | server grew by, MiB: highest | client, MiB: highest |\n|---|---|---|")
        for what, pairs in memory.items():
            server, client = zip(*pairs, strict=True)
            print(f"| {what} | {max(server):.0f} | {max(client):.0f} |")


def encodings() -> None:
    """Print bytes a row and time of ways to write the token rows, rounded as a server keeps them, and whole."""
    random = np.random.default_rng(0)
    whole = pa.concat_tables([token_table(step, random) for step in range(ROWS_A_GROUP // STEP_ROWS)]).combine_chunks()
    whole = whole.cast(pa.schema([pa.field(f.name, f.type) for f in whole.schema]))
    floats = [f.name for f in whole.schema if pa.types.is_floating(f.type)]
    rounded = whole
    for name in floats:
        column = pc.round(whole[name], 4).cast(pa.float32())
        rounded = rounded.set_column(rounded.column_names.index(name), name, column)
    lists = pc.round(whole["top_logps"].combine_chunks().values, 4).cast(pa.float32())
    lists = pa.ListArray.from_arrays(whole["top_logps"].combine_chunks().offsets, lists)
    rounded = rounded.set_column(rounded.column_names.index("top_logps"), "top_logps", lists)
    leaves = [*floats, "top_logps.list.element"]
    keys = {name: "DELTA_BINARY_PACKED" for name in whole.column_names if name in parquet_file.KEYS}
    others = [f.name for f in whole.schema if f.name not in keys and f.name not in floats and f.name[:4] != "top_"]
    others += ["top_ids.list.element"]
    ways = {
        "pyarrow's defaults": {},
        "deltas, byte-stream-split": {
            "use_dictionary": others, "column_encoding": keys | dict.fromkeys(leaves, "BYTE_STREAM_SPLIT")
        },
        "deltas, dictionary": {"use_dictionary": others + leaves, "column_encoding": keys},
        "ours: by what repeats": None,
    }  # fmt: skip
    print("| floats | way | bytes a row | write, s | read, s |\n|---|---|---|---|---|")
    for kind, rows in (("4 decimals", rounded), ("whole", whole)):
        for way, options in ways.items():
            made, times = b"", []
            for _ in range(3):
                out = io.BytesIO()
                began = time.perf_counter()
                chosen = parquet_file.encodings(rows) if options is None else options
                level = {"compression": parquet_file.COMPRESSION, "compression_level": parquet_file.LEVEL}
                pq.write_table(rows, out, row_group_size=ROWS_A_GROUP, **level, **chosen)
                middle = time.perf_counter()
                made = out.getvalue()
                pq.read_table(io.BytesIO(made), use_threads=False)
                times.append((middle - began, time.perf_counter() - middle))
            write, read = (min(column) for column in zip(*times, strict=True))
            print(f"| {kind} | {way} | {len(made) / rows.num_rows:.1f} | {write:.2f} | {read:.2f} |")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=360)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--encodings", action="store_true")
    given = arguments.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, duckdb {duckdb.__version__}")
    if given.encodings:
        encodings()
    else:
        transfers(given.steps, given.rounds)


if __name__ == "__main__":
    main()
