"""Batches on disk: whole or not there, one process to a stream, and errors that say what to change."""

import json
import os
import subprocess
import sys

import pytest

from entrostat.wire import spool
from entrostat.wire.errors import SpoolBusy, SpoolError
from entrostat.wire.spool import SpoolStream, pending_streams, sweep

ID = "0123456789abcdef" * 2


@pytest.fixture
def stream(tmp_path, opening):
    made = SpoolStream.create(tmp_path, opening, ID)
    yield made
    made.release()


def names(path):
    return sorted(os.listdir(path))


def test_a_batch_stays_until_it_is_deleted(stream, tmp_path):
    stream.write(1, b"one")
    stream.write(0, b"zero!")
    assert stream.path == tmp_path / "run" / ID
    assert names(stream.path) == ["000000000000.batch", "000000000001.batch", "lock", "next", "open.json"]
    assert stream.pending() == [(0, 5), (1, 3)]
    assert stream.read(1) == b"one"
    stream.delete(0)
    stream.delete(0)
    assert stream.pending() == [(1, 3)]


def test_a_batch_is_synced_before_it_has_its_name_and_its_directory_after(stream, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: calls.append("dir" if os.path.isdir(f"/proc/self/fd/{fd}") else "file") or fsync(fd)
    )
    monkeypatch.setattr(os, "replace", lambda *a: calls.append("rename") or replace(*a))
    stream.write(0, b"zero")
    assert calls == ["file", "rename", "dir"]


def test_a_disk_that_refuses_leaves_nothing_half_written(stream, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        stream.write(0, b"zero")
    assert names(stream.path) == ["lock", "next", "open.json"]


def test_a_finished_stream_leaves_no_trace(stream, tmp_path):
    stream.write(0, b"zero")
    stream.delete(0)
    (stream.path / ".000000000001.batch.partial").touch()
    stream.release()
    stream.release()
    assert names(tmp_path) == []


def test_a_run_directory_goes_with_its_last_stream(stream, tmp_path, opening):
    other = SpoolStream.create(tmp_path, opening, "f" * 32)
    stream.release()
    assert names(tmp_path / "run") == ["f" * 32]
    other.release()
    assert names(tmp_path) == []


def test_what_is_left_of_streams_with_nothing_to_send_is_swept_away_and_nothing_else(stream, tmp_path, opening):
    others = [SpoolStream.create(tmp_path, opening, f"{number:032x}") for number in range(3)]
    others[1].write(0, b"body")
    for one in others[:2]:
        one.let_go()
    sweep(tmp_path)

    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted([ID, f"{1:032x}", f"{2:032x}"])
    for one in [*others[1:], stream]:
        one.release()


def test_a_stream_that_goes_while_it_is_looked_at_is_passed_over(stream, tmp_path, opening, monkeypatch):
    other = SpoolStream.create(tmp_path, opening, "0" * 32)
    other.write(0, b"body")
    look = spool.numbered

    def gone(path, suffix):
        if path.name == ID:
            raise FileNotFoundError(path)
        return look(path, suffix)

    monkeypatch.setattr(spool, "numbered", gone)
    assert [found.path.name for found in pending_streams(tmp_path)] == ["0" * 32]
    other.release()


def test_a_rejected_batch_is_kept_with_its_reason(stream, tmp_path):
    stream.write(7, b"bad")
    stream.reject(7, {"message": "no"})
    aside = stream.path / "rejected"
    assert stream.pending() == []
    assert (aside / "000000000007.batch").read_bytes() == b"bad"
    assert json.loads((aside / "000000000007.reason.json").read_text()) == {"message": "no"}
    stream.release()
    assert aside.exists()
    [found] = pending_streams(tmp_path)
    assert (found.num_batches, found.num_rejected) == (0, 1)


def test_two_processes_never_share_a_stream(stream, tmp_path, opening):
    stream.write(0, b"zero")
    with pytest.raises(SpoolBusy, match="running process"):
        SpoolStream.adopt(stream.path)
    with pytest.raises(SpoolBusy):
        SpoolStream.create(tmp_path, opening, ID)
    [found] = pending_streams(tmp_path)
    assert found.is_live


def test_what_a_dead_process_left_can_be_adopted_but_not_begun_again(stream, tmp_path, opening):
    stream.write(0, b"zero")
    stream.release()
    with pytest.raises(SpoolError, match="already"):
        SpoolStream.create(tmp_path, opening, ID)
    [found] = pending_streams(tmp_path)
    assert (found.run_id, found.num_batches, found.num_bytes, found.is_live) == ("run", 1, 4, False)
    adopted = SpoolStream.adopt(found.path)
    assert adopted.opening == opening
    assert adopted.read(0) == b"zero"
    adopted.release()


def test_a_lock_ends_with_its_process(tmp_path):
    path = tmp_path / "run" / ID
    path.mkdir(parents=True)
    (path / "open.json").write_text("{}")
    (path / "000000000000.batch").touch()
    code = "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.flock(f,fcntl.LOCK_EX); print('held',flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    assert next(pending_streams(tmp_path)).is_live
    holder.kill()
    holder.communicate()
    assert not next(pending_streams(tmp_path)).is_live


def test_a_damaged_opening_is_named(stream):
    stream.write(0, b"zero")
    (stream.path / "open.json").write_text("{")
    stream.release()
    with pytest.raises(SpoolError, match=r"open\.json"):
        SpoolStream.adopt(stream.path)


def test_strange_files_are_left_alone(stream, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "run" / "not-a-stream").mkdir()
    (stream.path / "1.batch").touch()
    assert list(pending_streams(tmp_path)) == []
    assert list(pending_streams(tmp_path / "nowhere")) == []


@pytest.mark.parametrize("stream_id", ["", "..", "../" + ID, "A" * 32, ID + "\n"])
def test_a_stream_id_that_could_be_a_path_is_refused(tmp_path, opening, stream_id):
    with pytest.raises(SpoolError, match="cannot name"):
        SpoolStream.create(tmp_path, opening, stream_id)


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path, opening):
    (tmp_path / "file").touch()
    for use in (lambda p: SpoolStream.create(p, opening, ID), lambda p: list(pending_streams(p))):
        with pytest.raises(SpoolError, match=r"file.* is not a directory: set ENTROSTAT_DIR"):
            use(tmp_path / "file")


def test_a_directory_of_somebody_else_is_named(tmp_path, opening, monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied", str(tmp_path / "run"))

    monkeypatch.setattr("pathlib.Path.mkdir", denied)  # root, who runs tests in containers, is denied nothing
    with pytest.raises(SpoolError, match=r"no permission for .*run: set ENTROSTAT_DIR"):
        SpoolStream.create(tmp_path, opening, ID)
