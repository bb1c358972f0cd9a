"""Copies of a database that is written: whole batches, nothing foreign touched, refused where there is no room."""

import os
import subprocess
import sys
import threading
import types

import duckdb
import pytest

from entrostat.storage import files
from entrostat.storage.backups import look_into
from entrostat.storage.errors import Busy, NoRoom, StorageError
from entrostat.storage.restore import check_file
from entrostat.storage.store import Store
from entrostat.wire.errors import NotFound


def rows(step, count=5):
    return [{"step": step, "name": f"n{k}", "value": 1.0} for k in range(count)]


def counted(path):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(
            "select (select count(*) from raw.batch), (select count(*) from raw.step_part)"
        ).fetchall()[0]


def test_a_copy_has_what_was_committed_and_opens_as_a_store(store, produce):
    one = produce()
    for step in range(3):
        one.send(step_metric=rows(step))
    made = store.backups.make()
    one.send(step_metric=rows(3))

    path = store.backups.path(made.backup.name)
    assert (made.contents.num_runs, made.contents.num_batches) == (1, 3)
    assert made.backup.num_bytes == path.stat().st_size
    assert counted(path) == (3, 15)
    assert not files.wal_of(path).exists()
    with Store(f"duckdb://{path}") as copy:
        assert copy.query("select count(*) as n from batch", 1).table["n"].to_pylist() == [3]


def test_copies_made_while_batches_come_in_are_each_whole(store, produce):
    """Every batch brings five rows: a copy with half a batch would show."""
    stop, producers = threading.Event(), [produce(f"run{k}", session=k) for k in range(3)]

    def send(one):
        step = 0
        while not stop.is_set():
            one.send(step_metric=rows(step))
            step += 1

    threads = [threading.Thread(target=send, args=(one,)) for one in producers]
    for thread in threads:
        thread.start()
    made = [store.backups.make() for _ in range(5)]
    stop.set()
    for thread in threads:
        thread.join()

    found = [counted(store.backups.path(one.backup.name)) for one in made]
    assert all(num_rows == 5 * num_batches for num_batches, num_rows in found)
    assert found == sorted(found)
    assert found[-1][0] > found[0][0]
    assert all(check_file(store.backups.path(one.backup.name)).findings == () for one in made)


def test_a_reader_in_the_middle_of_a_question_does_not_spoil_a_copy(store, produce):
    one = produce()
    one.send(step_metric=rows(0))
    cursor = store._database.cursor()
    cursor.execute("begin transaction read only")
    assert cursor.execute("select count(*) from raw.batch").fetchall() == [(1,)]
    one.send(step_metric=rows(1))

    assert store.backups.make().contents.num_batches == 2
    cursor.close()


def test_what_is_left_of_the_log_is_copied_too(store, produce, tmp_path):
    one = produce()
    one.send(step_metric=rows(0))
    target = tmp_path / "copy.duckdb"
    store._writer.hold_still(lambda cursor: store._database.copy_to(target))  # without the checkpoint

    assert files.wal_of(target).exists()
    assert look_into(target).num_batches == 1
    assert not files.wal_of(target).exists()
    assert counted(target) == (1, 5)


def test_a_copy_leaves_the_lock_on_the_database(store, tmp_path):
    """POSIX drops a process's lock on a file when it closes any descriptor of it."""
    store.backups.make()
    code = f"from entrostat.storage.store import Store; Store('duckdb://{tmp_path / 'test.duckdb'}')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)

    assert "another process holds" in done.stderr


def test_the_list_is_newest_first_and_has_only_what_is_ours(store, tmp_path):
    first, second = store.backups.make().backup, store.backups.make().backup
    (tmp_path / "backups" / "notes.txt").write_text("mine")

    assert [one.name for one in store.backups.all()] == [second.name, first.name]
    store.backups.remove(first.name)
    assert [one.name for one in store.backups.all()] == [second.name]
    for name in (first.name, "notes.txt", "../test.duckdb", "/etc/passwd", ""):
        with pytest.raises(NotFound, match="GET /v1/backups"):
            store.backups.remove(name)
    assert (tmp_path / "backups" / "notes.txt").exists()


def test_without_room_nothing_is_begun_and_the_numbers_are_said(store, tmp_path, monkeypatch):
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=65 * 2**20))
    with pytest.raises(NoRoom, match=r"a backup needs 2 MiB and 64 MiB to spare, .* has 65 MiB free: remove old"):
        files.refuse_without_room(tmp_path, 2 * 2**20, "a backup")
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=64 * 2**20))
    with pytest.raises(NoRoom):
        store.backups.make()

    assert store.backups.all() == []
    assert list((tmp_path / "backups").iterdir()) == []


def test_one_copy_is_made_at_a_time(store, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    plain = store._database.copy_to

    def slow(target):
        begun.set()
        go_on.wait(60)
        plain(target)

    monkeypatch.setattr(store._database, "copy_to", slow)
    thread = threading.Thread(target=store.backups.make)
    thread.start()
    begun.wait(60)
    with pytest.raises(Busy, match="is being made"):
        store.backups.make()
    go_on.set()
    thread.join()

    assert len(store.backups.all()) == 1


def test_a_copy_that_fails_leaves_no_half_and_the_store_goes_on(store, produce, tmp_path, monkeypatch):
    one = produce()

    def broken(target):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store._database, "copy_to", broken)
    with pytest.raises(NoRoom, match="No space left"):
        store.backups.make()

    assert list((tmp_path / "backups").iterdir()) == []
    assert one.send(step_metric=rows(0)) is False


def test_a_copy_that_cannot_be_opened_does_not_get_a_name(store, tmp_path, monkeypatch):
    def rubbish(target):
        target.write_bytes(b"rubbish" * 10_000)

    monkeypatch.setattr(store._database, "copy_to", rubbish)
    with pytest.raises(StorageError, match="cannot read"):
        store.backups.make()

    assert list((tmp_path / "backups").iterdir()) == []
    assert store.backups.all() == []


def test_what_a_killed_server_left_is_gone_at_the_next_start(tmp_path):
    folder = tmp_path / "backups"
    folder.mkdir()
    left = folder / f"entrostat-{files.stamp()}.duckdb.partial"
    left.write_bytes(b"half")
    (folder / "somebody.partial").write_bytes(b"not ours")
    Store(f"duckdb://{tmp_path / 'test.duckdb'}").close()

    assert [path.name for path in folder.iterdir()] == ["somebody.partial"]


def test_a_database_in_memory_cannot_be_copied():
    with Store("duckdb::memory:") as store:
        assert store.backups.all() == []
        with pytest.raises(StorageError, match="in memory"):
            store.backups.make()
