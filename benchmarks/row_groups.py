"""Rows a second and bytes a row, by the size of a commit and of the engine's row groups.

``INSERT ... SELECT`` of token rows as the server writes them (``storage/rows.py``), commit after commit, then
CHECKPOINT, in this process. A row group's rows are compressed together; a commit that fills none goes to the log first.
Answers why ``schema.ROW_GROUP_ROWS`` is what it is. The questions are those of a page, on the file of one-step commits.

    python -P benchmarks/row_groups.py [--rounds 3] [--steps 96]
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).resolve().parent))

import duckdb
import numpy as np
import pyarrow as pa
from server_ingest import STEP_ROWS, token_table

from entrostat.storage import rows, schema

TABLE = schema.ROW_TABLES["token"]
SIZES = (122_880, 61_440, schema.ROW_GROUP_ROWS, 16_384)
"""Rows a row group; the first is the engine's own."""
STEPS_A_COMMIT = (0.25, 1, 2, 3, 4, 12, 0)
"""0: all in one."""
QUESTIONS = {
    "a signal's course": "select step, avg(entropy), min(logp) from raw.token_row group by step",
    "the worst of a step": "select * from raw.token_row where step = 50 order by abs(cov) desc limit 100",
    "tokens of 20 steps": "select token_id, sum(entropy / prob) s from raw.token_row where step between 70 and 89 "
    "group by token_id order by s desc limit 10",
}


def all_rows(steps: int) -> pa.Table:
    """Token rows with the keys that the server adds."""
    random = np.random.default_rng(0)
    tables = [token_table(step, random) for step in range(steps)]
    keys = {name: pa.array(np.ones(STEP_ROWS * steps, np.int32)) for name in ("run", "stream")}
    whole = pa.concat_tables(tables)
    return pa.table({c.name: keys[c.name] if c.name in keys else whole[c.name] for c in TABLE.columns})


def written(whole: pa.Table, row_group: int, rows_a_commit: int, folder: str) -> tuple[float, float]:
    """Rows a second, and bytes a row of the file that is left in ``folder``."""
    path = Path(folder, "rows.duckdb")
    with opened(path, row_group) as connection:
        connection.execute("create schema raw")
        connection.execute(schema.ddl(TABLE)[0])
        began = time.perf_counter()
        for first in range(0, whole.num_rows, rows_a_commit):
            piece = whole.slice(first, rows_a_commit).combine_chunks().to_batches(max_chunksize=row_group)
            connection.execute("begin")
            connection.register("_rows", pa.Table.from_batches(piece))
            connection.execute(rows._insert_sql("token", TABLE, 4, True))
            connection.unregister("_rows")
            connection.execute("commit")
        connection.execute("checkpoint")
        took = time.perf_counter() - began
    return whole.num_rows / took, path.stat().st_size / whole.num_rows


def opened(path: Path, row_group: int) -> duckdb.DuckDBPyConnection:
    """The file, with row groups of this size."""
    connection = duckdb.connect()
    connection.execute(f"attach {schema.quoted(str(path))} as store (row_group_size {row_group})")
    connection.execute("use store")
    return connection


def asked(path: Path, row_group: int) -> list[float]:
    """Milliseconds of each question: the median of five."""
    found = []
    with opened(path, row_group) as connection:
        for sql in QUESTIONS.values():
            took = []
            for _ in range(5):
                began = time.perf_counter()
                connection.execute(sql).fetchall()
                took.append((time.perf_counter() - began) * 1e3)
            found.append(statistics.median(took))
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=96)
    given = parser.parse_args()
    print(f"load average at the start {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, duckdb {duckdb.__version__}")
    whole = all_rows(given.steps)
    commits = [int(share * STEP_ROWS) or whole.num_rows for share in STEPS_A_COMMIT]
    speeds: dict[tuple[int, int], list[tuple[float, float]]] = {}
    answers: dict[int, list[list[float]]] = {}
    for number in range(given.rounds):
        for size in SIZES if number % 2 == 0 else SIZES[::-1]:
            for commit in commits:
                with tempfile.TemporaryDirectory() as folder:
                    speeds.setdefault((size, commit), []).append(written(whole, size, commit, folder))
                    if commit == STEP_ROWS:
                        answers.setdefault(size, []).append(asked(Path(folder, "rows.duckdb"), size))
    print(f"{whole.num_rows} rows; medians of {given.rounds} rounds: thousand rows/s, and bytes a row of the file")
    print("| rows a row group | " + " | ".join(f"{commit:,} a commit" for commit in commits) + " |")
    print("|---" * (len(commits) + 1) + "|")
    for size in SIZES:
        cells = [[statistics.median(kind) for kind in zip(*speeds[size, commit], strict=True)] for commit in commits]
        print(f"| {size:,} | " + " | ".join(f"{rate / 1e3:,.0f}, {room:.1f}" for rate, room in cells) + " |")
    print(f"\n| rows a row group | {' | '.join(f'{name}, ms' for name in QUESTIONS)} |")
    print("|---" * (len(QUESTIONS) + 1) + "|")
    for size in SIZES:
        medians = [statistics.median(kind) for kind in zip(*answers[size], strict=True)]
        print(f"| {size:,} | " + " | ".join(f"{ms:.1f}" for ms in medians) + " |")
    print(f"\nload average at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
