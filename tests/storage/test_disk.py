"""A disk without room: batches are refused in time, and taken again as soon as there is room."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from entrostat.storage import disk as disk_module
from entrostat.storage import schema
from entrostat.storage.disk import Disk, disk_full
from entrostat.storage.errors import DiskFull
from entrostat.storage.store import Store

MIB = 2**20


class Free:
    """What ``os.statvfs`` says, at the test's will."""

    f_frsize = MIB

    def __init__(self, mib):
        self.f_bavail = mib


@pytest.fixture
def free(monkeypatch):
    """``free(mib)``: so much is free from now on."""

    def leave(mib):
        monkeypatch.setattr(disk_module.os, "statvfs", lambda path: Free(mib))

    return leave


def test_a_batch_is_refused_below_the_floor_and_taken_again_above(tmp_path, produce, free):
    with Store(f"duckdb://{tmp_path / 'floor.duckdb'}", min_free_bytes=100 * MIB) as store:
        producer = produce("r", in_store=store)
        free(99)
        with pytest.raises(DiskFull, match=r"99\.0 MiB are free on the server's disk, 100 must stay") as refused:
            producer.metric(1, 0.5)
        problem = store.state().disk_problem
        free(200)
        is_duplicate = producer.metric(1, 0.5)

        assert refused.value.retry_after_s >= 1
        assert "min_free_mb" in problem
        assert (is_duplicate, store.state().disk_problem) == (False, None)
        assert store.query("select count(*) as n from batch", 1).table.to_pylist() == [{"n": 1}]


def test_what_was_taken_and_is_not_written_yet_counts(free):
    disk = Disk("/data/entrostat.duckdb", 100 * MIB)
    free(150)

    disk.check(30 * MIB, 20 * MIB)
    with pytest.raises(DiskFull):
        disk.check(30 * MIB, 21 * MIB)


def test_who_asks_is_told_of_what_would_be_refused_again(free):
    disk = Disk("/data/entrostat.duckdb", 100 * MIB)
    free(110)
    assert disk.problem() is None
    with pytest.raises(DiskFull):
        disk.check(0, 11 * MIB)

    assert disk.problem() is not None
    free(111)
    assert disk.problem() is None


def test_a_database_in_memory_needs_no_disk():
    disk = Disk(":memory:", 100 * MIB)

    disk.check(10**15, 1)
    assert (disk.free_bytes, disk.database_bytes, disk.log_bytes) == (None, 0, 0)


def test_the_sizes_are_those_of_the_files(tmp_path, produce):
    path = tmp_path / "sizes.duckdb"
    with Store(f"duckdb://{path}") as store:
        produce("r", in_store=store).metric(1, 0.5)
        state = store.state()

        assert state.database_bytes == path.stat().st_size
        assert state.log_bytes == Path(f"{path}.wal").stat().st_size > 0
        assert state.free_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)


@pytest.mark.parametrize(
    ("said", "is_full"),
    [
        ('IO Error: Could not write file "x": No space left on device', True),
        ("IO Error: Disk quota exceeded", True),
        ("IO Error: File too large", True),
        ("IO Error: Input/output error", False),
    ],
)
def test_the_engines_words_for_a_full_disk(said, is_full):
    assert (disk_full(duckdb.IOException(said)) is not None) == is_full


FULL_INSIDE_A_COMMIT = """
import json, resource, signal, sys
from datetime import UTC, datetime
from entrostat.storage.errors import DiskFull
from entrostat.storage.store import Store
from entrostat.wire.codec import decode_json
from entrostat.wire.messages import StreamOpen

def body(seq, rows):
    text = json.dumps({"step_metric": [{"step": seq, "name": f"n{i}", "value": i / 7} for i in range(rows)]}).encode()
    return decode_json(text), len(text)

ROWS = int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write over the limit fails with EFBIG, as on a full disk
store, stream = Store(f"duckdb://{sys.argv[1]}"), "0" * 31 + "1"
store.open_stream(stream, StreamOpen(run_id="r", session_id=stream, started=datetime.now(UTC)))
store.add_batch(stream, 0, *body(0, 10)).result()
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
try:
    store.add_batch(stream, 1, *body(1, ROWS)).result()
except DiskFull as error:
    print("refused:", error)
print("error known:", store.state().write_error is not None, "broken:", store.state().failure is not None)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.try_write()
print("error forgotten:", store.state().write_error is None)
print("taken:", store.add_batch(stream, 1, *body(1, ROWS)).result() is False)
store.close()
with Store(f"duckdb://{sys.argv[1]}") as again:
    print(again.query("select seq, num_rows from batch order by seq", 9).table.to_pylist())
"""


# Fewer rows than a row group go to the log, more to the file itself.
@pytest.mark.parametrize("num_rows", [schema.ROW_GROUP_ROWS - 1, 8 * schema.ROW_GROUP_ROWS])
def test_a_disk_that_fills_up_inside_a_commit_costs_that_batch_only_until_there_is_room(tmp_path, num_rows):
    done = subprocess.run(
        [sys.executable, "-P", "-c", FULL_INSIDE_A_COMMIT, str(tmp_path / "full.duckdb"), str(num_rows)],
        capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip

    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("refused: the server's disk is full")
    assert lines[1:4] == ["error known: True broken: False", "error forgotten: True", "taken: True"]
    assert lines[4] == f"[{{'seq': 0, 'num_rows': 10}}, {{'seq': 1, 'num_rows': {num_rows}}}]"
