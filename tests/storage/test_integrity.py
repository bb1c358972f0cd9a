"""A sound database has no findings; each kind of damage has one, which says where."""

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from support.full_batch import full_batch, many_tokens

from entrostat.storage.errors import DatabaseHeld, StorageError
from entrostat.storage.restore import check_file, restore
from entrostat.storage.retention import Policy
from entrostat.storage.schema import SCHEMA_VERSION
from entrostat.storage.store import Store
from entrostat.wire.codec import decode_json
from entrostat.wire.errors import NotFound
from entrostat.wire.messages import StreamOpen


@pytest.fixture
def full(store, produce):
    """A store with rows in every table: two ranks, a baseline, what a rule and a person did."""
    for rank in range(2):
        one = produce("r", rank=rank, world_size=2, settings={"baseline_steps": 2})
        for step in range(4):
            one.send(**full_batch(step))
    store.add_event("r", 1, "note", "of the server")
    return store


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The file of such a store, made once; each test spoils a copy of it."""
    path = tmp_path_factory.mktemp("kept") / "full.duckdb"
    with Store(f"duckdb://{path}", linger_s=0.0) as store:
        for rank in range(2):
            opening = StreamOpen(
                run_id="r", session_id="1" * 32, rank=rank, world_size=2, settings={"baseline_steps": 2},
                started=datetime(2026, 1, 1, tzinfo=UTC),
            )  # fmt: skip
            store.open_stream(f"{rank:032x}", opening)
            for step in range(4):
                store.add_batch(f"{rank:032x}", step, decode_json(json.dumps(full_batch(step)).encode()), 1).result(30)
        store.add_event("r", 1, "note", "of the server")
    return path


@pytest.fixture
def spoiled(kept, tmp_path):
    """``spoiled("SQL", ...)``: what is found damaged in a copy after these statements, as (table, what)."""

    def damage(*statements):
        path = tmp_path / "spoiled.duckdb"
        shutil.copy(kept, path)
        with duckdb.connect(str(path)) as connection:
            for statement in statements:
                connection.execute(statement)
        return [(f.table, f.what) for f in check_file(path).findings if f.is_damage]

    return damage


def test_a_sound_database_has_no_findings_and_every_row_was_read(full):
    report = full.check()
    tables = full._database.rows("select table_name from duckdb_tables() where schema_name = 'raw'")
    counts = [full._database.rows(f"select count(*) from raw.{name}")[0][0] for (name,) in tables]

    assert report.findings == ()
    assert report.num_rows == sum(counts)
    assert full._database.rows("select count(*) from raw.step_part where name = 'forking_rate'")[0][0] > 0
    assert full._database.rows("select count(*) from raw.baseline") == [(1,)]


def test_an_empty_database_is_sound(store):
    assert store.check().findings == ()


@pytest.mark.parametrize(
    ("sql", "table", "what"),
    [
        ("delete from raw.token_row where step = 1 and pos = 0 and stream = 2", "batch", "1 are missing"),
        ("delete from raw.sequence_row where step = 1 and stream = 1", "batch", "1 are missing"),
        ("insert into raw.token_row select * from raw.token_row where step = 2", "batch", "3 are of no batch"),
        ("delete from raw.batch where seq = 2 and stream = 1", "step_part", "2 rows are of batch 2 of stream 1"),
        ("delete from raw.batch where seq = 2 and stream = 1", "batch", "are of no batch"),
        ("delete from raw.step_part where line = 0 and batch_seq = 1 and stream = 1", "step_part", "has 1 rows"),
        ("update raw.step_part set line = 0 where batch_seq = 1 and stream = 1", "step_part", "is there 2 times"),
        ("delete from raw.stream where stream = 2", "token_row", "rows are of stream 2, run 1, which is not there"),
        ("delete from raw.stream where stream = 2", "batch", "batch 0 is of stream"),
        ("delete from raw.run", "stream", "is of run 1, which is not there"),
        ("delete from raw.run", "baseline", "1 rows are of run 1"),
        ("delete from raw.run", "event_row", "1 rows are of run 1"),
        ("insert into raw.run select * from raw.run", "run", "run 1 is there 2 times"),
        ("insert into raw.run select * from raw.run", "run", "run_id r is there 2 times"),
        ("insert into raw.stream select * from raw.stream where stream = 1", "stream", "is there 2 times"),
        ("insert into raw.desired_state values (7, 1, '{}', now()::timestamp)", "desired_state", "1 rows are of run 7"),
        ("insert into raw.rule_state values (7, 'x', 1, 1, '{}')", "rule_state", "1 rows are of run 7"),
        ("insert into raw.removal values (7, 'x', 1, 'token', 1, 1, 1, now()::timestamp, 'x')", "removal", "of run 7"),
        ("drop table raw.rule cascade", "rule", "is missing"),
        ("update raw.meta set schema_version = 99", "meta", "tables of version 99"),
    ],
)  # fmt: skip
def test_each_kind_of_damage_is_found_and_named(spoiled, sql, table, what):
    assert spoiled() == []
    found = spoiled(sql)

    assert [text for place, text in found if place == table and what in text], found


def test_two_rows_of_the_ledger_for_one_batch_are_found(spoiled):
    """The key forbids it; a file whose key is broken is made here without one."""
    found = spoiled(
        "create table raw.copy as select * from raw.batch",
        "insert into raw.copy select * from raw.batch where seq = 1",
        "drop table raw.batch cascade",
        "alter table raw.copy rename to batch",
    )

    assert [what for table, what in found if table == "batch" and "seq 1 is there 2 times" in what]


def test_batches_that_are_not_here_are_a_note(store, produce):
    one = produce()
    for seq in (0, 1, 5):
        one.send(seq, **full_batch(seq))

    report = store.check()
    assert report.is_sound
    assert [f.what[:9] for f in report.findings] == ["3 batches"]


def test_what_retention_removed_is_no_damage_and_what_it_did_not_remove_is(full):
    full.retention._now = lambda: datetime(2100, 1, 1)
    full.retention.apply(Policy(keep_token_days=1))
    assert full._database.rows("select count(*) from raw.token_row") == [(0,)]
    assert full.check().findings == ()

    full.write(lambda cursor: cursor.execute("delete from raw.removal where what = 'token' and stream = 1"))
    assert [f.what for f in full.check().findings if "12 are missing" in f.what]


def test_a_check_changes_nothing_and_batches_go_on(full, produce):
    full.check()

    assert produce("other", session=9).send(**full_batch(0)) is False


# Files --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A database file of some MB, made once."""
    path = tmp_path_factory.mktemp("large") / "file.duckdb"
    with Store(f"duckdb://{path}", linger_s=0.0) as store:
        opening = StreamOpen(run_id="r", session_id="1" * 32, started=datetime(2026, 1, 1, tzinfo=UTC))
        store.open_stream("0" * 32, opening)
        for step in range(3):
            store.add_batch("0" * 32, step, {"token": many_tokens(step, 30_000)}, 1).result(60)
    return path


@pytest.fixture
def file(large, tmp_path):
    """A copy of it, that no server holds."""
    return Path(shutil.copy(large, tmp_path / "file.duckdb"))


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_file_is_checked_without_being_changed(file):
    before = file.read_bytes()

    assert check_file(file).findings == ()
    assert check_file(file).num_rows > 90_000
    assert file.read_bytes() == before


def test_a_flipped_byte_is_found(file):
    found = []
    for share in (0.3, 0.5, 0.7):
        flip(file, int(file.stat().st_size * share))
        try:
            found += [f.what for f in check_file(file).findings if f.is_damage]
        except StorageError as error:  # a block that opening needs
            found.append(str(error))
        flip(file, int(file.stat().st_size * share))

    assert any("checksum" in what for what in found)
    assert check_file(file).is_sound


def test_a_damaged_file_is_not_taken_for_one_that_is_held(tmp_path, file):
    """The engine says "in block at location": there is a lock in every block."""
    with duckdb.connect(str(file)) as connection:
        meta = connection.execute("select distinct block_id from pragma_metadata_info()").fetchall()
    for (block,) in meta:
        flip(file, 3 * 4096 + block * 262_144 + 8 + 100)

    with pytest.raises(StorageError, match="restore") as caught:
        Store(f"duckdb://{file}")
    assert not isinstance(caught.value, DatabaseHeld)
    assert "another process" not in str(caught.value)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("not a database" * 1000)
    with pytest.raises(StorageError, match="cannot read"):
        check_file(tmp_path / "text")
    with pytest.raises(NotFound):
        check_file(tmp_path / "nowhere")
    with duckdb.connect(str(tmp_path / "foreign.duckdb")) as connection:
        connection.execute("create table t (a int)")

    assert [f.what for f in check_file(tmp_path / "foreign.duckdb").findings] == [
        "is missing: this is not a database of entrostat"
    ]


def test_a_backup_of_an_older_version_is_sound_and_says_so(tmp_path):
    first = (Path(__file__).parent / "version_1.sql").read_text()
    with duckdb.connect(str(tmp_path / "old.duckdb")) as connection:
        connection.execute(f"begin; {first}; commit")
    report = check_file(tmp_path / "old.duckdb")

    assert report.is_sound
    assert [f.what for f in report.findings] == [
        f"tables of version 1: a server brings them to {SCHEMA_VERSION} when it opens the file"
    ]


# Restoring ----------------------------------------------------------------------------------------------------------


def num_batches(path):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute("select count(*) from raw.batch").fetchall()[0][0]


def test_a_restored_backup_is_the_database_and_what_was_there_is_put_aside(tmp_path, store, file):
    (tmp_path / "data").mkdir()
    database = tmp_path / "data" / "entrostat.duckdb"
    Store(f"duckdb://{database}").close()
    done = restore(file, database)

    assert (done.contents.num_runs, done.contents.num_batches) == (1, 3)
    assert num_batches(database) == num_batches(file) == 3
    assert num_batches(done.put_aside) == 0
    assert sorted(p.name for p in database.parent.iterdir()) == [database.name, done.put_aside.name]
    with Store(f"duckdb://{database}") as again:
        assert again.check().is_sound


def test_a_database_is_restored_where_there_was_none(tmp_path, file):
    assert restore(file, tmp_path / "new" / "entrostat.duckdb").put_aside is None
    assert num_batches(tmp_path / "new" / "entrostat.duckdb") == 3


def test_a_damaged_database_can_be_replaced(tmp_path, file):
    database = tmp_path / "entrostat.duckdb"
    database.write_bytes(b"rubbish" * 10_000)
    (tmp_path / "entrostat.duckdb.wal").write_bytes(b"rubbish")
    done = restore(file, database)

    assert num_batches(database) == 3
    assert done.put_aside.read_bytes().startswith(b"rubbish")
    assert not (tmp_path / "entrostat.duckdb.wal").exists()


def test_a_damaged_backup_is_refused_and_nothing_is_changed(tmp_path, file):
    database = tmp_path / "data" / "entrostat.duckdb"
    Store(f"duckdb://{database}").close()
    before = database.read_bytes()
    whole = file.read_bytes()
    flip(file, int(file.stat().st_size * 0.5))
    with pytest.raises(StorageError, match=r"not restored|checksum"):
        restore(file, database)
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StorageError):
        restore(file, database)

    assert database.read_bytes() == before
    assert [p.name for p in database.parent.iterdir()] == [database.name]


def test_a_database_that_a_server_holds_is_not_replaced(tmp_path, file):
    """A process of its own: inside one process the engine shares a file."""
    database = tmp_path / "data" / "entrostat.duckdb"
    code = f"from entrostat.storage.store import Store; s = Store('duckdb://{database}'); print(1, flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "1\n"
        with pytest.raises(DatabaseHeld, match="stop it, then restore"):
            restore(file, database)
    finally:
        holder.communicate("\n")

    assert num_batches(database) == 0
