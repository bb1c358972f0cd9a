"""The sender and its disk: one that is full, one that takes no step, a spool over its limit."""

import errno
import os
import threading

import pytest
from support.patience import PATIENCE_S, until
from support.sent import spooled_steps, token_rows

from entrostat.wire import handover
from entrostat.wire.codec import decode
from entrostat.wire.errors import SpoolError
from entrostat.wire.handover import left_in
from entrostat.wire.spool import SpoolStream


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that refuses batches until its ``clear`` is called."""
    is_full = threading.Event()
    is_full.set()
    write = SpoolStream.write

    def refuse(self, seq, body):
        if is_full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, seq, body)

    monkeypatch.setattr(SpoolStream, "write", refuse)
    return is_full


def test_a_full_disk_is_said_once_and_batches_go_from_memory(server, make_sender, step, full_disk, caplog):
    sender = make_sender(server.url)
    for number in range(3):
        sender.put(step(number), 100)
        assert sender.flush(PATIENCE_S)
    assert server.steps() == [0, 1, 2]
    assert len([r for r in caplog.records if "No space left" in r.message]) == 1


def test_what_waited_in_memory_is_written_when_the_disk_takes_it(make_sender, step, full_disk, tmp_path):
    sender = make_sender(None, linger_s=0.0)
    for number in range(3):
        sender.put(step(number), 100)
        sender.flush(PATIENCE_S)
    assert list(tmp_path.rglob("*.batch")) == []
    full_disk.clear()
    until(lambda: spooled_steps(tmp_path) == [0, 1, 2])


@pytest.fixture
def own_disk(monkeypatch):
    """Wherever the tests' folder may be."""
    monkeypatch.setattr(handover, "is_local", lambda directory: True)


@pytest.mark.usefixtures("own_disk")
def test_a_disk_that_takes_no_step_is_told_of_once_and_steps_go_their_way(
    server, make_sender, step, monkeypatch, caplog
):
    sender = make_sender(server.url)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", refuse)
    for number in range(3):
        assert sender.handover.keep([memoryview(b"abc")]) is None
        sender.put(step(number), 100, record=sender.handover.seal(b"about"))
    assert sender.flush(PATIENCE_S)
    assert server.steps() == [0, 1, 2]
    assert len([r for r in caplog.records if "a killed trainer may lose" in r.message]) == 1


@pytest.mark.usefixtures("own_disk")
def test_what_was_handed_over_is_let_go_when_its_rows_are_kept_or_dropped(make_sender, step, tmp_path):
    sender = make_sender(None, max_queue_bytes=1000)
    gate = threading.Event()

    def handed():
        sender.handover.keep([memoryview(b"abc")])
        return sender.handover.seal(b"about")

    def broken():
        gate.wait(PATIENCE_S)
        raise RuntimeError("no")

    sender.put(broken, 600, record=handed())
    sender.put(step(1), 300, record=handed())
    sender.put(step(2), 300, record=handed())  # no room
    [stream] = (path.parent for path in tmp_path.rglob("open.json"))
    assert len(left_in(stream)) == 2
    gate.set()
    sender.flush(PATIENCE_S)
    assert left_in(stream) == []
    sender.close()
    assert spooled_steps(tmp_path) == [1]
    assert not list(tmp_path.rglob("*.step"))


@pytest.mark.usefixtures("own_disk")
def test_what_was_handed_over_stays_where_it_is_while_no_disk_takes_its_rows(
    make_sender, step, full_disk, tmp_path, monkeypatch
):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SpoolStream, "append", refuse)
    sender = make_sender(None, linger_s=0.0)
    sender.handover.keep([memoryview(b"abc")])
    sender.put(step(1), 100, record=sender.handover.seal(b"about"))
    sender.flush(PATIENCE_S)
    [stream] = (path.parent for path in tmp_path.rglob("open.json"))
    assert [left.seq for left in left_in(stream)] == [0], "its batch is in memory alone"

    full_disk.clear()
    until(lambda: not left_in(stream))
    assert spooled_steps(tmp_path) == [1]


def test_with_disk_and_memory_full_the_queue_fills_and_the_drop_is_counted(make_sender, step, full_disk, tmp_path):
    sender = make_sender(None, linger_s=0.0, max_queue_bytes=1000)
    until(lambda: sender.put(step(1), 400) or sender.counters.dropped_items > 0)
    full_disk.clear()
    sender.close()
    assert sender.counters.spool_bytes == sum(f.stat().st_size for f in tmp_path.rglob("*.batch"))
    assert len(spooled_steps(tmp_path)) + sender.counters.dropped_items > 2


def test_a_directory_that_cannot_be_used_is_an_error_at_the_start(make_sender, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="ENTROSTAT_DIR"):
        make_sender(None, root=tmp_path / "file")
    with pytest.raises(ValueError, match="http://"):
        make_sender("localhost:8321")


def test_over_its_limit_the_spool_loses_tokens_never_steps_or_events(make_sender, metric, tmp_path):
    sender = make_sender(None, max_spool_bytes=1)
    for number in range(3):
        sender.put(lambda n=number: {"token": token_rows(10), "step_metric": metric(n)}, 100)
        sender.flush(PATIENCE_S)
    sender.close()
    bodies = [decode(f.read_bytes()) for f in sorted(tmp_path.rglob("*.batch"))]
    assert spooled_steps(tmp_path) == [0, 1, 2]
    assert ["token" in body for body in bodies] == [True, False, False]
    assert sender.counters.dropped_token_rows == 20
    events = [row for body in bodies if "event" in body for row in body["event"].to_pylist()]
    assert [event["kind"] for event in events] == ["dropped", "dropped"]
    assert "10 token rows" in events[0]["message"]
