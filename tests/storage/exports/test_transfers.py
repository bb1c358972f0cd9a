"""A run goes out as files and comes in again: every row, once, all at once, and nothing where it cannot be read."""

import tempfile

import numpy as np
import pyarrow as pa
import pytest
from support import exported_run
from support.exports import is_same, rewritten, rows_of_views, tables_of, tar_of

from entrostat.storage import removals, runs
from entrostat.storage.exports import importing
from entrostat.storage.exports.layout import TABLES
from entrostat.storage.schema import SCHEMA_VERSION
from entrostat.storage.store import Store
from entrostat.wire.errors import Conflict, MalformedExport, NotFound, UnknownVersion
from entrostat.wire.messages import StreamOpen


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    with Store(f"duckdb://{tmp_path_factory.mktemp('source') / 'a.duckdb'}", num_threads=1) as opened:
        exported_run.fill(opened)
        yield opened


@pytest.fixture(scope="module")
def tar(source):
    return tar_of(source)


@pytest.fixture
def target(tmp_path):
    """A store with a run of its own, so that no key is what it was."""
    with Store(f"duckdb://{tmp_path / 'b.duckdb'}", num_threads=1) as opened:
        send_one_batch(opened, "other", 800)
        yield opened


def send_one_batch(store, run, number):
    opening = StreamOpen(run_id=run, session_id=exported_run.stream_id(number), started=exported_run.BEGAN)
    store.open_stream(exported_run.stream_id(number), opening)
    tables = exported_run.batch(np.random.default_rng(number), [1], 0)
    store.add_batch(exported_run.stream_id(number), 0, tables, 10).result(60)


def import_(store, tar, name=None):
    with tempfile.TemporaryFile() as file:
        file.write(tar)
        file.flush()
        return store.transfers.import_(file, name)


def raw_rows(tar):
    """Table -> rows without the surrogate keys: a stream by its own name."""
    tables = tables_of(tar)
    names = dict(zip(tables["stream"]["stream"].to_pylist(), tables["stream"]["stream_id"].to_pylist()))
    return {
        name: [
            {k: names.get(v, v) if k == "stream" else v for k, v in row.items() if k != "run"}
            for row in table.to_pylist()
        ]
        for name, table in tables.items()
    }


def test_a_run_that_was_imported_is_the_run_that_was_exported(source, tar, target):
    before = rows_of_views(source.query)
    # Beside what retention took away: nothing was.
    assert {view for view, table in before.items() if not table.num_rows} <= {"removal"}
    assert {name for name, rows in raw_rows(tar).items() if not rows} <= {"removal"}

    taken = import_(target, tar)
    after = rows_of_views(target.query)

    assert (taken.run_id, taken.num_streams) == ("full", len(exported_run.STREAMS))
    for view, rows in before.items():
        assert is_same(after[view], rows), view
    assert raw_rows(tar_of(target)) == raw_rows(tar)
    assert target.run("full") == source.run("full") | {"status": target.status("full")}
    assert target.desired("full") == source.desired("full")
    assert number_of(target, "token where run = 'other'") == 20


def number_of(store, what):
    return store.query(f"select count(*) from {what}", 1).table[0][0].as_py()


def test_the_same_export_is_not_taken_twice(tar, target):
    import_(target, tar)
    with pytest.raises(Conflict, match=r"the run 'full' has 5 of the export's 5 streams.*Delete 'full' first"):
        import_(target, tar)
    with pytest.raises(Conflict, match="held here already"):
        import_(target, tar, "another")

    assert sorted(run["run"] for run in target.runs()) == ["full", "other"]
    target.delete_run("full")
    assert import_(target, tar, "another").run_id == "another"
    assert number_of(target, "token where run = 'another'") > 0


def test_what_was_removed_of_a_run_goes_with_it_under_its_name(tar, target, tmp_path):
    import_(target, tar)

    def remove(cursor):
        key = runs.key_of(cursor, "full")
        [(stream,)] = cursor.execute("select min(stream) from raw.stream where run = ?", [key]).fetchall()
        removals.rows_removed(cursor, (key, "full"), stream, "token", 3, (1, 2), "kept 7 days")

    target.write(remove)
    with Store(f"duckdb://{tmp_path / 'c.duckdb'}") as third:
        import_(third, tar_of(target), "another")
        shown = third.query("select run, what, num_rows, from_step, to_step, reason from removal", 10).table.to_pylist()

    assert [tuple(row.values()) for row in shown] == [("another", "token", 3, 1, 2, "kept 7 days")]


def test_a_name_that_is_taken_gets_a_number_or_is_refused(tar, target, produce):
    produce("full", in_store=target, session=77)

    with pytest.raises(Conflict, match="there is a run 'other' already: give another name with --as"):
        import_(target, tar, "other")
    assert import_(target, tar).run_id == "full-2"


def test_a_batch_that_is_sent_again_after_the_import_is_held_once(tar, target):
    import_(target, tar)
    number, session, rank, producer, first, *_ = exported_run.STREAMS[0]
    stream = exported_run.stream_id(number)
    opened = target.open_stream(stream, exported_run.opening("full", number, session, rank, producer, None))
    batch = exported_run.batch(np.random.default_rng(9), [first], rank)
    before = number_of(target, "token")

    assert opened.run_id == "full"
    assert target.add_batch(stream, 0, batch, 10).result(60) is True
    assert target.add_batch(stream, 99, batch, 10).result(60) is False
    assert number_of(target, "token") == before + batch["token"].num_rows


def test_a_run_that_was_deleted_and_taken_in_again_takes_its_streams_batches(tar, target):
    import_(target, tar)
    target.delete_run("full")
    import_(target, tar)
    _, _, rank, _, first, *_ = exported_run.STREAMS[0]
    batch = exported_run.batch(np.random.default_rng(9), [first], rank)

    assert target.add_batch(exported_run.stream_id(1), 99, batch, 10).result(60) is False


def test_the_baseline_holds_for_what_comes_after_the_import(tar, target):
    import_(target, tar)
    number, session, rank, producer, *_ = exported_run.STREAMS[3]
    target.open_stream(exported_run.stream_id(number), exported_run.opening("full", number, session, rank, producer, 6))
    tables = exported_run.batch(np.random.default_rng(9), [50], rank)
    target.add_batch(exported_run.stream_id(number), 99, {"histogram": tables["histogram"]}, 10).result(60)

    statement = "select value from step_metric where run = 'full' and name = 'forking_rate' and step = 50"
    assert target.query(statement, 1).table.num_rows == 1
    assert target.query("select * from baseline where run = 'full'", 9).table.num_rows == 1  # not fixed once more


@pytest.fixture
def meanwhile(monkeypatch):
    """``meanwhile(action)``: done once, when an import has written most of its rows."""
    checked, is_done = importing.check, False

    def make(action):
        def check(table, rows):
            nonlocal is_done
            checked(table, rows)
            if table.name == "rule_state" and not is_done:
                is_done = True
                action()

        monkeypatch.setattr(importing, "check", check)
        return lambda: is_done

    return make


def test_nothing_is_seen_before_all_is(tar, target, meanwhile):
    views = ("run", "stream", "batch", "token", "step_metric", "event", "baseline", "desired_state")
    seen, before = {}, {view: number_of(target, view) for view in views}

    meanwhile(lambda: seen.update({view: number_of(target, view) for view in views}))
    import_(target, tar)

    assert seen == before
    assert all(number_of(target, view) > before[view] for view in views)


def test_ingest_goes_on_during_an_import_and_gets_other_keys(source, tar, target, meanwhile):
    is_done = meanwhile(lambda: send_one_batch(target, "meanwhile", 900))
    import_(target, tar)
    after = rows_of_views(target.query)

    assert is_done()
    assert all(is_same(after[view], rows) for view, rows in rows_of_views(source.query).items())
    assert number_of(target, "token where run = 'meanwhile'") == 20


def test_a_stream_that_opens_during_its_import_wins(tar, target, meanwhile):
    is_done = meanwhile(lambda: send_one_batch(target, "quicker", 1))
    with pytest.raises(Conflict, match="'quicker' has 1 of the export's 5 streams"):
        import_(target, tar)

    assert is_done()
    assert sorted(run["run"] for run in target.runs()) == ["other", "quicker"]
    target.delete_run("quicker")
    import_(target, tar)
    assert raw_rows(tar_of(target)) == raw_rows(tar)


def test_an_export_is_of_one_moment(tmp_path, monkeypatch):
    from entrostat.storage.exports import parquet_file

    write = parquet_file.write
    with Store(f"duckdb://{tmp_path / 'c.duckdb'}") as store:
        exported_run.fill(store)
        before = raw_rows(tar_of(store))

        numbers = iter(range(100, 200))

        def slowly(*arguments):
            tables = exported_run.batch(np.random.default_rng(4), [30], 0)
            store.add_batch(exported_run.stream_id(4), next(numbers), tables, 10).result(60)
            return write(*arguments)

        monkeypatch.setattr(parquet_file, "write", slowly)
        during = raw_rows(tar_of(store))
        monkeypatch.undo()

        assert during == before
        assert len(raw_rows(tar_of(store))["batch"]) == len(before["batch"]) + len(TABLES)


def test_a_run_that_is_not_there_is_not_found(target):
    with pytest.raises(NotFound, match="no run 'nobody'"):
        target.transfers.export("nobody")


def without(table, *columns):
    return table.drop_columns(list(columns))


def test_what_an_older_export_lacks_is_null(tar, target):
    token = tables_of(tar)["token_row"]
    older = rewritten(
        tar, {"token_row": without(token, "ratio", "top_ids"), "rule_state": None}, schema_version=SCHEMA_VERSION - 1
    )

    import_(target, older)
    rows = tables_of(tar_of(target))["token_row"]
    assert rows.num_rows == token.num_rows
    assert (rows["ratio"].null_count, rows["top_ids"].null_count) == (rows.num_rows, rows.num_rows)
    assert rows["logp"].equals(token["logp"])


def test_an_older_export_lacks_only_what_may_be_null(tar, target):
    token = without(tables_of(tar)["token_row"], "logp")
    with pytest.raises(MalformedExport, match=r"token_row.parquet: the column 'logp' is missing"):
        import_(target, rewritten(tar, {"token_row": token}, schema_version=SCHEMA_VERSION - 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, f"version {SCHEMA_VERSION + 1} .* knows {SCHEMA_VERSION}"),
        ({"format": 2}, "of format 2, this entrostat knows 1"),
    ],
)  # fmt: skip
def test_an_export_of_a_newer_entrostat_is_refused_with_both_versions(tar, target, change, words):
    with pytest.raises(UnknownVersion, match=words):
        import_(target, rewritten(tar, **change))


def test_a_table_of_which_nothing_was_sent_is_an_empty_file(target, produce):
    produce("small", in_store=target, session=5).metric(1, 0.5)
    tables = tables_of(tar_of(target, "small"))

    assert set(tables) == set(TABLES)
    assert tables["token_row"].num_rows == 0
    assert tables["token_row"].schema.field("top_ids").type == pa.list_(pa.field("element", pa.int32()))
