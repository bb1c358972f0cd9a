"""Exports that are damaged, or made to do harm: one clear error, nothing stored, no file left, no memory taken."""

import io
import json
import os
import tarfile
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import exported_run
from support.exports import files_of, packed, rewritten, tables_of, tar_of, with_column

from entrostat.storage.exports import reading
from entrostat.storage.exports.reading import Received
from entrostat.storage.store import Store
from entrostat.wire.archive import MANIFEST
from entrostat.wire.errors import MalformedExport, UnknownVersion


@pytest.fixture(scope="module")
def tar():
    with Store("duckdb::memory:") as store:
        exported_run.fill(store)
        return tar_of(store)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store(f"duckdb://{tmp_path_factory.mktemp('hostile') / 'a.duckdb'}") as opened:
        yield opened


@pytest.fixture
def refused(store):
    """``refused(tar, words)``: not taken in, for that reason, and nothing is left of it anywhere."""

    def check(data, words):
        folder = store.transfers.folder
        before = sorted(os.listdir(folder)), len(os.listdir("/proc/self/fd"))
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            with pytest.raises((MalformedExport, UnknownVersion), match=words):
                store.transfers.import_(file)
        assert (sorted(os.listdir(folder)), len(os.listdir("/proc/self/fd"))) == before
        raw = store.write(
            lambda cursor: [
                cursor.execute(f"select count(*) from raw.{table}").fetchall()[0][0]
                for table in ("run", "stream", "batch", "token_row", "step_part", "event_row", "rule_state")
            ]
        )
        assert raw == [0] * 7

    return check


def member(name, data=b"x", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (member("a.parquet", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "not a plain file"),
        (member("a.parquet", b"", type=tarfile.LNKTYPE, linkname="manifest.json"), "not a plain file"),
        (member("a.parquet", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5), "not a plain file"),
        (member("a.parquet", b"", type=tarfile.FIFOTYPE), "not a plain file"),
        (member("folder", b"", type=tarfile.DIRTYPE), "not a plain file"),
        (member("/etc/cron.d/x"), "is in no export"),
        (member("../../token_row.parquet"), "is in no export"),
        (member("sub/token_row.parquet"), "is in no export"),
        (member("token_row.parquet/../../x"), "is in no export"),
        (member("a" * 90 + ".parquet"), "is in no export"),
        (member("unlisted.parquet"), "unlisted.parquet: has 1 bytes, the manifest does not know it"),
        (member("manifest.json"), "is in it twice"),
        (member("run.parquet"), "is in it twice"),
    ],
)
def test_only_plain_files_with_known_names_are_taken(tar, refused, info, words):
    files = files_of(tar)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as made:
        for name, data in [(MANIFEST, files[MANIFEST]), ("run.parquet", files["run.parquet"])]:
            made.addfile(member(name, data)[0], io.BytesIO(data))
        made.addfile(info[0], io.BytesIO(info[1]))
    refused(out.getvalue(), words)


def test_headers_that_take_memory_are_not_read(tar, refused):
    """A PAX or GNU header says how long it is; tar programs read that much into memory."""
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE):
        info, _ = member("manifest.json", b"", type=kind)
        info.size = 2**40
        refused(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_240), "not a plain file")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends too early"),
        (b"PK\x03\x04" + bytes(600), "is not a tar"),
        (bytes(10_240), "begins with 'nothing'"),
        (packed({"run.parquet": b""}), "begins with 'run.parquet'"),
        (packed({MANIFEST: b"[" * 100_000}), "not the manifest"),
        (packed({MANIFEST: b"[1]"}), "not the manifest"),
        (packed({MANIFEST: b'{"format": 1}'}), r"manifest.json: schema_version: Field required"),
        (packed({MANIFEST: b"x" * 2**21}), "begins with"),
    ],
)
def test_what_is_no_export_is_said_to_be_none(refused, data, words):
    refused(data, words)


def test_the_manifest_is_held_to(tar, refused):
    document = json.loads(files_of(tar)[MANIFEST])
    twice = document | {"files": [document["files"][0]] * 2}
    unknown = document | {"files": [*document["files"], document["files"][0] | {"name": "rule.parquet"}]}
    path = document | {"files": [document["files"][0] | {"name": "../run.parquet"}]}
    huge = document | {"files": [document["files"][0] | {"bytes": 2**62}, *document["files"][1:]]}

    for changed, words in (
        (twice, "names a file twice"), (unknown, "is missing|unknown table"), (path, "files.0.name"),
        (huge, "has .* bytes"),
    ):  # fmt: skip
        refused(packed(files_of(tar) | {MANIFEST: json.dumps(changed).encode()}), words)
    refused(rewritten(tar, {"token_row": None}), r"token_row.parquet: the manifest does not name it")
    refused(rewritten(tar, run_id="another"), "must have one row, of the manifest's run 'another'")


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        ("token_row", lambda t: t.append_column("x", t["pos"]), "unknown column 'x'"),
        ("token_row", lambda t: t.drop_columns(["ratio"]), "the column 'ratio' is missing"),
        ("token_row", lambda t: t.set_column(4, "pos", t["pos"].cast(pa.int64())), "'pos' is int64, it must be int32"),
        ("token_row", lambda t: with_column(t, "logp", [None] * t.num_rows), "'logp': 840 values are null"),
        ("token_row", lambda t: with_column(t, "step", [-1] * t.num_rows), "'step': it goes from 0 to"),
        ("token_row", lambda t: with_column(t, "stream", [99] * t.num_rows), "a stream that the export does not have"),
        ("token_row", lambda t: with_column(t, "stream", [-1] * t.num_rows), "a stream that the export does not have"),
        ("step_part", lambda t: with_column(t, "merge", ["avg"] * t.num_rows), "unknown merge rule 'avg'"),
        ("step_part", lambda t: with_column(t, "received", [2**62] * t.num_rows), "a moment is not between"),
        ("run", lambda t: pa.concat_tables([t, t]), "must have one row"),
        ("run", lambda t: t.slice(0, 0), "must have one row"),
        ("run", lambda t: with_column(t, "tags", ["{"]), "'tags': '{' is not a JSON object"),
        ("run", lambda t: with_column(t, "tags", ['{"a": 1}']), "'tags'"),
        ("run", lambda t: with_column(t, "config", ["[]"]), "'config'"),
        ("run", lambda t: with_column(t, "run_id", ["../x"]), "String should match pattern"),
        ("stream", lambda t: with_column(t, "stream_id", ["x"] * t.num_rows), "String should match pattern"),
        ("stream", lambda t: pa.concat_tables([t, t]), "has a stream twice"),
        ("batch", lambda t: with_column(t, "stream_id", ["0" * 32] * t.num_rows), "not the stream's own"),
        ("batch", lambda t: pa.concat_tables([t, t]), "a batch is in it twice"),
        ("desired_state", lambda t: with_column(t, "document", ["{}}"] * t.num_rows), "Invalid JSON"),
        ("baseline", lambda t: with_column(t, "threshold_bin", [32767]), "is no bin"),
    ],
)  # fmt: skip
def test_rows_are_held_to_what_ingest_is_held_to(tar, refused, table, change, words):
    refused(rewritten(tar, {table: change(tables_of(tar)[table])}), words)


def test_the_manifests_number_of_rows_is_the_files(tar, refused):
    document = json.loads(files_of(tar)[MANIFEST])
    for entry in document["files"]:
        entry["rows"] += entry["name"] == "token_row.parquet"
    refused(packed(files_of(tar) | {MANIFEST: json.dumps(document).encode()}), "has 840 rows, the manifest says 841")


def bomb_of_lists(token, num_bytes):
    """One row whose list has millions of zeros, in some kilobytes."""
    length = num_bytes // 4
    wide = pa.ListArray.from_arrays(pa.array([0, length], pa.int32()), pa.array(np.zeros(length, np.int32)))
    field = token.schema.field("top_ids").with_type(pa.list_(pa.int32()))
    return token.slice(0, 1).set_column(token.column_names.index("top_ids"), field, wide)


def bomb_of_text(token, num_bytes):
    field = token.schema.field("text")
    return token.slice(0, 1).set_column(token.column_names.index("text"), field, pa.array(["x" * num_bytes]))


def with_bomb(tar, bomb, num_bytes):
    """An export of one token row, and the same with the row's bomb; some kilobytes each."""
    token, out = tables_of(tar)["token_row"], io.BytesIO()
    pq.write_table(bomb(token, num_bytes), out, compression="zstd", use_dictionary=False)
    assert len(out.getvalue()) < 2**20
    one_row = rewritten(tar, {"token_row": token.slice(0, 1)})
    return one_row, rewritten(one_row, files={"token_row.parquet": out.getvalue()})


@pytest.mark.parametrize("bomb", [bomb_of_lists, bomb_of_text])
def test_a_file_that_unpacks_to_more_than_its_reader_may_take_ends_the_reader(tar, refused, bomb, monkeypatch):
    monkeypatch.setattr(reading, "READER_BYTES", 150 * 2**20)  # the rule, at a size that is quick to make
    harmless, harmful = with_bomb(tar, bomb, 200 * 2**20)

    assert drained(harmless)["token_row"] == 1
    refused(harmful, r"token_row.parquet: (cannot be read as Parquet: malloc|cannot be read as .*Memory|what reads it)")


def test_rows_that_take_too_much_at_a_time_are_refused(tar, refused):
    _, harmful = with_bomb(tar, bomb_of_text, 270 * 2**20)
    refused(harmful, r"token_row.parquet: 1 of its rows take")


def drained(data):
    """Everything read as an import reads it, without a database; what comes out."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        received = Received(file)
        with received.rows() as tables:
            return {table.name: sum(piece.num_rows for piece in pieces) for table, pieces in tables}


@given(cut=st.floats(0, 1, exclude_max=True))
@example(cut=0.0)
@settings(max_examples=40)
def test_an_export_that_was_cut_off_is_refused(tar, cut):
    with tempfile.TemporaryFile() as file:
        file.write(tar[: int(cut * (len(tar) - 1024))])
        file.flush()
        with pytest.raises(MalformedExport):
            Received(file)


@given(data=st.data())
@settings(max_examples=150)
def test_a_flipped_byte_is_found_or_does_not_matter(tar, data):
    place, bits = data.draw(st.integers(0, len(tar) - 1)), data.draw(st.integers(1, 255))
    changed = bytearray(tar)
    changed[place] ^= bits
    with tempfile.TemporaryFile() as file:
        file.write(changed)
        file.flush()
        try:
            received = Received(file)
        except (MalformedExport, UnknownVersion):
            return
        kept = {entry.name: entry for entry in received.manifest.files}
    # Between the files, or in a word of the manifest that says nothing about them.
    original = json.loads(files_of(tar)[MANIFEST])
    assert {name: entry.sha256 for name, entry in kept.items()} == {e["name"]: e["sha256"] for e in original["files"]}


@given(data=st.data())
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_a_parquet_file_that_was_changed_on_purpose_harms_nobody(tar, data):
    """With a hash that fits: the reader of Parquet sees it."""
    name = data.draw(st.sampled_from(["token_row", "step_part", "run"]))
    changed = bytearray(files_of(tar)[f"{name}.parquet"])
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(4, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    refusals = []
    try:
        drained(rewritten(tar, files={f"{name}.parquet": bytes(changed)}))
    except MalformedExport as error:
        refusals.append(error.file)
    assert refusals in ([], [f"{name}.parquet"])


def test_a_reader_that_dies_is_said_so(tar, refused, monkeypatch):
    monkeypatch.setattr(reading, "READER_BYTES", 2**20)
    refused(tar, "what reads it stopped|cannot be read")
