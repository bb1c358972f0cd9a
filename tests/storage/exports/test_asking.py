"""SQL on exports says what the server said; several are one database; nothing but their files can be read."""

import duckdb
import pytest
from support import exported_run
from support.exports import is_same, rewritten, rows_of_views, tables_of, tar_of, unpacked, with_column

from entrostat.storage.exports.asking import ExportedRuns
from entrostat.storage.schema import SCHEMA_VERSION
from entrostat.storage.store import Store
from entrostat.wire.errors import Conflict, MalformedExport, QueryError, QueryForbidden

QUESTIONS = (
    "select count(*) from token",
    "select step, sum(entropy / prob) / sum(1 / prob) from token where run = 'full' group by step order by step",
    "select * from step_metric order by run, step, name",
    "select step, entropy_mean, d_collapse, is_complete from step where run = 'full' order by step",
    "select process_rank, top1_logp, text, top_ids from token order by step, process_rank, producer, seq, pos",
    "select r.run, e.kind, e.message from event e join run r on e.run = r.run order by all",
    "select name, bin, sum(count) from histogram group by all order by all",
    "with s as (select prompt, avg(reward) as r from sequence group by prompt) select * from s order by prompt",
)


@pytest.fixture(scope="module")
def source():
    with Store("duckdb::memory:", num_threads=1) as store:
        exported_run.fill(store)
        exported_run.fill(store, run="second", seed=5)
        yield store


@pytest.fixture(scope="module")
def exports(source, tmp_path_factory):
    """The runs' exports: the first as a folder, the second as a tar."""
    place = tmp_path_factory.mktemp("it's exported")
    second = place / "second.tar"
    second.write_bytes(tar_of(source, "second"))
    return unpacked(tar_of(source), place / "full"), second


@pytest.fixture(scope="module")
def held(exports):
    with ExportedRuns(exports, num_threads=1) as opened:
        yield opened


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_export_answers_as_the_store_did(source, held, question):
    wanted = source.query(question, 100_000).table

    assert wanted.num_rows
    assert is_same(held.query(question, 100_000).table, wanted)


@pytest.mark.parametrize("run", ["full", "second"])
def test_every_view_has_the_rows_of_every_run(source, held, run):
    wanted, found = rows_of_views(source.query, run), rows_of_views(held.query, run)

    assert {view: is_same(found[view], rows) for view, rows in wanted.items()} == dict.fromkeys(wanted, True)


@pytest.mark.parametrize(
    "statement",
    [
        "select * from read_parquet('/etc/passwd')", "select * from raw.token_row", "drop view token",
        "select * from '/etc/passwd'", "copy token to '/tmp/x'", "attach '/tmp/x.duckdb'",
    ],
)  # fmt: skip
def test_statements_are_guarded_as_on_a_server(held, statement):
    with pytest.raises((QueryForbidden, QueryError)):
        held.query(statement, 10)


def test_beneath_the_guard_only_the_exports_files_can_be_read(held, tmp_path):
    (tmp_path / "other.csv").write_text("a\n1\n")
    cursor = held.cursor()
    for statement in (f"select * from read_csv('{tmp_path}/other.csv')", f"copy (select 1) to '{tmp_path}/out.csv'"):
        with pytest.raises(duckdb.PermissionException):
            cursor.execute(statement)
    cursor.close()


def test_a_second_run_of_the_same_name_gets_another(exports, tmp_path):
    with Store("duckdb::memory:") as store:
        exported_run.send(store.open_stream, lambda *at: store.add_batch(*at, num_bytes=1).result(60), run="third")
        third = tar_of(store, "third")
    path = tmp_path / "third.tar"
    path.write_bytes(renamed(third, "full"))
    with ExportedRuns([exports[0], path]) as both:
        assert both.query("select run from run order by run", 9).table["run"].to_pylist() == ["full", "full-2"]
        assert both.renamed == {path: "full-2"}


def renamed(tar, run):
    tables = tables_of(tar)
    changed = {}
    for name in ("run", "stream"):
        changed[name] = with_column(tables[name], "run_id", [run] * tables[name].num_rows)
    return rewritten(tar, changed, run_id=run)


def test_the_same_export_twice_is_refused(exports):
    with pytest.raises(Conflict, match="held here already"):
        ExportedRuns([exports[0], exports[0]])


def test_an_older_export_answers_with_nulls(source, tmp_path):
    token = tables_of(tar_of(source))["token_row"].drop_columns(["ratio"])
    path = tmp_path / "older.tar"
    changed = {"token_row": token, "cell_part": None}
    path.write_bytes(rewritten(tar_of(source), changed, schema_version=SCHEMA_VERSION - 1))
    with ExportedRuns([path]) as older:
        assert older.query("select count(*), count(ratio) from token", 1).table.to_pylist()[0]["count(ratio)"] == 0


def test_damage_is_found_before_the_first_question(source, tmp_path):
    folder = unpacked(tar_of(source), tmp_path / "damaged")
    tokens = bytearray((folder / "token_row.parquet").read_bytes())
    tokens[len(tokens) // 2] ^= 1
    (folder / "token_row.parquet").write_bytes(tokens)
    with pytest.raises(MalformedExport, match=r"token_row.parquet: is damaged"):
        ExportedRuns([folder])
    (folder / "token_row.parquet").unlink()
    with pytest.raises(MalformedExport, match=r"token_row.parquet: is not there with the \d+ bytes"):
        ExportedRuns([folder])
    with pytest.raises(MalformedExport, match=r"there is no manifest.json in"):
        ExportedRuns([tmp_path])


def test_a_tar_is_unpacked_and_removed(exports, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ExportedRuns([exports[1]]):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Conflict):
        ExportedRuns([exports[1], exports[1]])
    assert list(tmp_path.iterdir()) == []
