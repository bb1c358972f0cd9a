"""How long a server takes to open a database of version 1: the copy that it keeps, and the migration itself.

python -P benchmarks/migration.py [--rows 5000000]
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import duckdb

from entrostat.storage import migrations, schema
from entrostat.storage.store import Store

FIRST = Path(__file__).parents[1] / "tests" / "storage" / "version_1.sql"


def filled(path: Path, num_rows: int) -> None:
    """A file of version 1 with so many token rows more."""
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"begin; {FIRST.read_text()}; commit")
        connection.execute(
            "insert into raw.token_row (run, stream, step, seq, pos, token_id, logp, entropy, reason, prob) "
            "select 1, 1, k // 16384, k % 16384 // 256, k % 256, (random() * 50000)::int, round(-random(), 4), "
            "round(random(), 4), 'all', 1 from range(?) t(k)",
            [num_rows],
        )


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    given = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, duckdb {duckdb.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.duckdb"
        filled(path, given.rows)
        size = path.stat().st_size / 2**20
        with duckdb.connect(str(path)) as connection:
            began = time.perf_counter()
            connection.execute("begin")
            migrations.migrate(connection, 1)
            connection.execute("rollback")
            steps_s = time.perf_counter() - began
        for name in (f"first opening: version 1 to {schema.SCHEMA_VERSION}, with a copy", "second opening"):
            began = time.perf_counter()
            Store(f"duckdb://{path}").close()
            print(f"{name}: {time.perf_counter() - began:.2f} s")
        print(f"the steps alone: {steps_s:.2f} s; {given.rows:,} token rows, {size:,.0f} MiB")


if __name__ == "__main__":
    main()
