"""Rows that wait for their batch outlive the process that wrote them, once, and a torn end costs the torn rows only."""

import os
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

from entrostat.wire import tail
from entrostat.wire.client import Client, push
from entrostat.wire.codec import decode, encode, encode_plain
from entrostat.wire.spool import SpoolStream, pending_streams
from entrostat.wire.tables import STEP_METRIC

ID = "0123456789abcdef" * 2


def metric(step):
    return {
        "step_metric": pa.Table.from_pylist(
            [{"step": step, "name": "x", "merge": "last", "state": [1.0]}], schema=STEP_METRIC
        )
    }


def steps(tables):
    return tables["step_metric"]["step"].to_pylist() if tables else []


@pytest.fixture
def stream(tmp_path, opening):
    made = SpoolStream.create(tmp_path, opening, ID)
    yield made
    made.release()


def adopted_batches(tmp_path):
    stream = SpoolStream.adopt(tmp_path / "run" / ID)
    try:
        return {seq: steps(decode(stream.read(seq))) for seq, _ in stream.pending()}
    finally:
        stream.release()


def test_what_was_appended_becomes_the_batch_of_its_number(stream, tmp_path):
    stream.write(6, encode(metric(0)))
    stream.append(7, encode_plain(metric(1)))
    stream.append(7, encode_plain(metric(2)))
    stream.release()
    [found] = pending_streams(tmp_path)
    assert found.num_batches == 2
    assert adopted_batches(tmp_path) == {6: [0], 7: [1, 2]}
    assert sorted(p.suffix for p in (tmp_path / "run" / ID).glob("0*")) == [".batch", ".batch"]


def test_a_tail_beside_its_batch_is_not_looked_at(stream, tmp_path):
    stream.append(0, encode_plain(metric(1)))
    left = (stream.path / "000000000000.tail").read_bytes()
    stream.write(0, encode(metric(1)))
    assert not (stream.path / "000000000000.tail").exists()
    (stream.path / "000000000000.tail").write_bytes(left)  # killed between the two
    [found] = pending_streams(tmp_path)
    assert found.num_batches == 1
    stream.release()
    assert adopted_batches(tmp_path) == {0: [1]}


@pytest.mark.parametrize("cut", [1, 60, 2])
def test_a_torn_record_is_left_out_and_those_before_it_are_not(stream, tmp_path, cut):
    stream.append(0, encode_plain(metric(1)))
    whole = (stream.path / "000000000000.tail").stat().st_size
    stream.append(0, encode_plain(metric(2)))
    size = (stream.path / "000000000000.tail").stat().st_size
    os.truncate(stream.path / "000000000000.tail", size - cut if cut < 60 else whole + 5)
    stream.release()
    assert adopted_batches(tmp_path) == {0: [1]}


def test_a_damaged_record_ends_the_reading(stream):
    stream.append(0, encode_plain(metric(1)))
    stream.append(0, encode_plain(metric(2)))
    path = stream.path / "000000000000.tail"
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    assert steps(tail.read(path)[0]) == [1]


def test_a_tail_of_nothing_whole_makes_no_batch_and_does_not_stay(stream, tmp_path):
    (stream.path / "000000000000.tail").write_bytes(b"torn")
    stream.release()
    assert adopted_batches(tmp_path) == {}
    assert os.listdir(tmp_path) == []


def test_a_disk_that_refuses_leaves_the_records_before(stream, monkeypatch):
    stream.append(0, encode_plain(metric(1)))
    write = os.write

    def full(fd, piece):
        if len(piece) > 100:
            write(fd, piece[:50])
            raise OSError(28, "No space left on device")
        return write(fd, piece)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            stream.append(0, encode_plain(metric(2)))
    stream.append(0, encode_plain(metric(3)))
    assert steps(tail.read(stream.path / "000000000000.tail")[0]) == [1, 3]


def test_what_was_sent_from_memory_leaves_no_tail(stream, tmp_path):
    stream.append(0, encode_plain(metric(1)))
    stream.delete(0)
    stream.release()
    assert os.listdir(tmp_path) == []


_CHILD = """
import pathlib, sys, time
from datetime import UTC, datetime
import pyarrow as pa
from entrostat.wire import tail
from entrostat.wire.messages import StreamOpen
from entrostat.wire.sender import Sender
from entrostat.wire.tables import STEP_METRIC

root = pathlib.Path(sys.argv[1])
opening = StreamOpen(run_id="run", session_id="a" * 32, started=datetime.now(UTC))
sender = Sender(opening, url=None, token=None, root=root, linger_s=600.0)
def rows(n):
    return lambda: {"step_metric": pa.Table.from_pylist(
        [{"step": n, "name": "x", "merge": "last", "state": [1.0]}], schema=STEP_METRIC)}
for n in range(20):
    sender.put(rows(n), 100)
file = root / "run" / sender.stream_id / "000000000000.tail"
while not file.exists() or sum(t.num_rows for t in tail.read(file)[0].values()) < 20:
    time.sleep(0.01)
print(sender.counters.batches_written, flush=True)
time.sleep(600)
"""


def test_kill_9_while_rows_linger_loses_none_and_push_delivers_them_once(server, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", _CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "0\n"  # no batch yet
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with Client(server.url) as client:
        assert push(tmp_path, client).num_sent == 1
        assert push(tmp_path, client).num_sent == 0
    assert server.steps() == list(range(20))
    assert os.listdir(tmp_path) == []
