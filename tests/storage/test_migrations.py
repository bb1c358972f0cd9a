"""A file of the first version opens with today's code: nothing is lost, and it becomes what a new file is."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from entrostat.storage import files, migrations, schema
from entrostat.storage.errors import NoRoom, StorageError
from entrostat.storage.store import Store
from entrostat.wire.signals import SIGNALS

FIRST = (Path(__file__).parent / "version_1.sql").read_text()


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A database file of version 1."""
    path = tmp_path_factory.mktemp("first") / "first.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"begin; {FIRST}; commit")
    return path


@pytest.fixture(scope="module")
def before(first):
    """What it has."""
    return contents(first)


@pytest.fixture
def old(first, tmp_path):
    """A copy of it."""
    return Path(shutil.copy(first, tmp_path / "old.duckdb"))


def contents(path, columns_of=None):
    """Every table and view of a file as (schema, name) -> (columns, rows); of ``columns_of``, only what it has."""
    with duckdb.connect(str(path), read_only=True) as connection:
        found = {}
        listed = connection.execute(
            "select schema_name, table_name, list(column_name order by column_index) from duckdb_columns() "
            "where not internal group by all"
        ).fetchall()
        for place, name, columns in listed:
            wanted = columns if columns_of is None else columns_of.get((place, name), ([],))[0]
            if wanted:
                picked = ", ".join(f'"{c}"' for c in wanted)
                rows = connection.execute(f'select {picked} from {place}."{name}" order by all').fetchall()
                found[place, name] = (wanted, rows)
        return found


def described(path):
    """Everything that is declared in a file: columns in their order with type, null and comment; keys; views."""
    with duckdb.connect(str(path), read_only=True) as connection:
        return [
            connection.execute(question).fetchall()
            for question in (
                "select table_name, column_index, column_name, data_type, is_nullable, column_default, comment "
                "from duckdb_columns() where not internal order by all",
                "select table_name, comment from duckdb_tables() order by all",
                "select table_name, constraint_type, constraint_column_names from duckdb_constraints() order by all",
                "select schema_name, view_name, sql, comment from duckdb_views() where not internal order by all",
                "select * from raw.meta",
            )
        ]


def version(path):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute("select schema_version from raw.meta").fetchall()


def copies(path):
    return sorted((path.parent / "backups").glob("*"))


def test_the_steps_lead_from_the_first_version_to_todays_without_a_gap():
    assert [step.version for step in migrations.STEPS] == list(range(2, schema.SCHEMA_VERSION + 1))


def test_the_frozen_file_has_rows_in_every_table_of_its_time(old, before):
    assert version(old) == [(1,)]
    assert {name for (place, name), (_, rows) in before.items() if place == "raw" and not rows} == set()
    assert len(before["raw", "token_row"][1]) == 36


def test_a_migrated_file_reads_as_it_did_and_is_what_a_new_one_is(old, before, tmp_path):
    Store(f"duckdb://{old}").close()
    Store(f"duckdb://{tmp_path / 'new.duckdb'}").close()

    after = contents(old, columns_of=before)
    assert set(after) == set(before)
    for name in before:
        if name != ("raw", "meta"):
            assert after[name] == before[name], name
    assert described(old) == described(tmp_path / "new.duckdb")


def test_a_migrated_file_takes_batches_and_its_old_rows_have_no_value_for_what_came_later(old, produce):
    token = {"step": 9, "seq": 0, "pos": 0, "token_id": 7, "logp": -0.5, "entropy": 1.0, "reason": "all", "prob": 1.0}
    with Store(f"duckdb://{old}") as store:
        produce("third", in_store=store).send(token=[token | {"rollout_logp": -0.625}])
        question = "select run, rollout_logp, logp, prob, count(*) from token group by all order by all"
        rows = store.query(question, 100).table.to_pydict()

    assert rows["rollout_logp"][-1] == -0.625
    assert (rows["run"][-1], rows["logp"][-1], rows["prob"][-1]) == ("third", -0.5, 1.0)
    assert set(rows["rollout_logp"][:-1]) == {None}


def test_the_file_as_it_was_is_kept_beside_it(old, before):
    Store(f"duckdb://{old}").close()
    Store(f"duckdb://{old}").close()

    (kept,) = copies(old)
    assert kept.name == "entrostat-version-1.duckdb"
    assert contents(kept) == before


def test_what_a_killed_server_left_in_its_log_is_migrated_and_in_the_copy(old):
    with duckdb.connect(str(old)) as connection:
        connection.execute("pragma disable_checkpoint_on_shutdown")
        connection.execute("update raw.run set notes = 'in the log' where run_id = 'second'")
    assert files.wal_of(old).exists()
    with Store(f"duckdb://{old}") as store:
        assert store.run("second")["notes"] == "in the log"

    with duckdb.connect(str(copies(old)[0]), read_only=True) as copy:
        assert copy.execute("select notes from raw.run order by run").fetchall() == [("a note",), ("in the log",)]


def test_without_room_for_a_copy_it_is_migrated_all_the_same_and_that_is_said(old, monkeypatch, caplog):
    def no_room(*_):
        raise NoRoom("needs 5 MiB, has 3")

    monkeypatch.setattr(files, "refuse_without_room", no_room)
    Store(f"duckdb://{old}").close()

    assert version(old) == [(schema.SCHEMA_VERSION,)]
    assert copies(old) == []
    assert "without keeping a copy: needs 5 MiB, has 3" in caplog.records[0].fields["message"]


def test_a_migration_that_fails_leaves_the_old_file(old, before, monkeypatch):
    shape = described(old)
    wrong = migrations.Step(migrations.STEPS[-1].version, "wrong", ("alter table raw.nothing add column x int",))
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS[:-1], wrong))

    with pytest.raises(StorageError, match=rf"from version 1 to {schema.SCHEMA_VERSION} \(wrong\).*as it was"):
        Store(f"duckdb://{old}")
    assert (contents(old), described(old)) == (before, shape)
    monkeypatch.undo()
    Store(f"duckdb://{old}").close()  # nothing holds it, and it can still be migrated


def test_a_server_killed_in_the_middle_of_a_migration_leaves_the_old_file(old, before):
    code = (
        "import os, signal\n"
        "from entrostat.storage import views\n"
        "from entrostat.storage.store import Store\n"
        "def killed():\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"  # after the tables, before COMMIT
        "views.statements = killed\n"
        f"Store('duckdb://{old}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)

    assert done.returncode == -signal.SIGKILL
    assert contents(old) == before
    assert version(old) == [(1,)]
    Store(f"duckdb://{old}").close()
    assert version(old) == [(schema.SCHEMA_VERSION,)]


def test_a_file_that_does_not_say_its_version_is_refused(old):
    with duckdb.connect(str(old)) as connection:
        connection.execute("delete from raw.meta")

    with pytest.raises(StorageError, match=r"raw\.meta has 0 rows"):
        Store(f"duckdb://{old}")


@pytest.mark.parametrize("is_old", [True, False])
def test_a_file_that_lacks_a_table_is_refused_by_name(old, is_old):
    if not is_old:
        Store(f"duckdb://{old}").close()
    with duckdb.connect(str(old)) as connection:
        connection.execute("drop table raw.rule_state")

    with pytest.raises(StorageError, match=r"lacks the tables \['rule_state'\]: restore"):
        Store(f"duckdb://{old}")


def test_all_signals_of_a_migrated_file_can_be_read(old):
    with Store(f"duckdb://{old}") as store:
        assert [run["run"] for run in store.runs()] == ["second", "first"]
        series = store.series(["first"], [s.name for s in SIGNALS], None, None, 100)

    assert sum(bool(one["step"]) for one in series) > 20
