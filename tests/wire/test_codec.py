"""Bodies: what goes in comes out, and whatever else comes is refused by name, never by accident."""

import json
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrostat.wire.codec import check_table, decode, decode_json, encode
from entrostat.wire.errors import MalformedBatch, TooLarge, UnknownVersion
from entrostat.wire.notices import event
from entrostat.wire.tables import PROTOCOL, STEP_METRIC, TABLES, empty

REFUSALS = (MalformedBatch, TooLarge, UnknownVersion)


def metrics(num_rows=20):
    rows = [{"step": i, "name": f"n{i}", "merge": "mean", "state": [2.0, float(i)]} for i in range(num_rows)]
    return pa.Table.from_pylist(rows, schema=STEP_METRIC)


def stream(table, metadata, compression=None):
    """An Arrow IPC stream as anybody might write it."""
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata(metadata)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    return sink.getvalue().to_pybytes()


def body_of(table, name="step_metric", protocol=str(PROTOCOL), **options):
    return zstd(stream(table, {"table": name, "protocol": protocol}, **options))


def zstd(raw):
    return pa.compress(raw, "zstd").to_pybytes()


def unpacked(body):
    return pa.input_stream(pa.BufferReader(body), compression="zstd").read()


def sample_value(kind):
    if pa.types.is_list(kind):
        return [1, 2]
    return {"string": "a", "bool": True, "timestamp[us]": 1}.get(str(kind), 1)


def test_every_table_comes_out_as_it_went_in():
    tables = {}
    for name, schema in TABLES.items():
        row = {field.name: sample_value(field.type) for field in schema}
        row |= {"merge": "mean", "state": [1.0, 2.0]} if name == "step_metric" else {}
        row |= {"detail": '{"a": 1}'} if name == "event" else {}
        nothing = {field.name: None for field in schema if field.nullable}
        tables[name] = pa.Table.from_pylist([row, row | nothing], schema=schema)
    decoded = decode(encode(tables))
    assert {name: table.to_pylist() for name, table in decoded.items()} == {
        name: table.to_pylist() for name, table in tables.items()
    }


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.text(max_size=20), st.floats(allow_nan=False)), max_size=30))
def test_any_metric_comes_out_as_it_went_in(rows):
    table = pa.Table.from_pylist(
        [{"step": s, "name": n, "merge": "last", "state": [v]} for s, n, v in rows], schema=STEP_METRIC
    )
    assert decode(encode({"step_metric": table})).get("step_metric", empty("step_metric")).equals(table)


def test_columns_may_come_in_another_order_and_in_chunks():
    table = pa.concat_tables([metrics(3), metrics(2), metrics(0)]).select(["state", "merge", "name", "step"])
    assert decode(encode({"step_metric": table}))["step_metric"].equals(pa.concat_tables([metrics(3), metrics(2)]))
    assert decode(body_of(table))["step_metric"].num_rows == 5


def test_empty_tables_are_left_out():
    assert decode(encode({"step_metric": metrics(0), "event": empty("event")})) == {}


def test_a_body_cut_anywhere_is_refused():
    body = encode({"step_metric": metrics(), "event": event("note", "hello")})
    for length in range(len(body)):
        with pytest.raises(MalformedBatch):
            decode(body[:length])


@pytest.mark.parametrize("inside", [True, False], ids=["inside the compression", "outside"])
def test_damage_is_refused_or_harmless_but_never_another_exception(inside):
    chance = random.Random(7)
    body = encode({"step_metric": metrics(), "event": event("note", "hello")})
    whole = unpacked(body) if inside else body
    num_refused = 0
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 5))):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 255, chance.randrange(256)))
        try:
            decode(zstd(bytes(damaged)) if inside else bytes(damaged))
        except REFUSALS:
            num_refused += 1
    assert num_refused > 500


@given(st.binary(max_size=300))
def test_rubbish_is_refused(rubbish):
    for body in (rubbish, zstd(rubbish)):
        if body != zstd(b""):
            with pytest.raises(REFUSALS):
                decode(body)


def test_a_newer_protocol_is_refused_with_both_versions():
    with pytest.raises(UnknownVersion, match=f"protocol {PROTOCOL + 1}.*{PROTOCOL}"):
        decode(body_of(metrics(), protocol=str(PROTOCOL + 1)))


def test_a_column_that_came_later_is_null_in_an_older_batch_and_no_other_may_be_missing():
    row = {f.name: sample_value(f.type) for f in TABLES["token"]} | {"reason": "all"}
    whole = pa.Table.from_pylist([row, row], schema=TABLES["token"])
    older = whole.drop_columns(["rollout_logp"])

    (decoded,) = decode(body_of(older, "token", protocol="1")).values()
    assert decoded.schema.names == TABLES["token"].names
    assert decoded["rollout_logp"].to_pylist() == [None, None]
    assert decoded.drop_columns(["rollout_logp"]).to_pylist() == older.to_pylist()
    with pytest.raises(MalformedBatch, match=r"rollout_logp.*missing"):
        decode(body_of(older, "token"))
    with pytest.raises(MalformedBatch, match=r"cov.*missing"):
        decode(body_of(older.drop_columns(["cov"]), "token", protocol="1"))


@pytest.mark.parametrize("protocol", ["", "one", "-1", "0", "²", "9" * 5000])
def test_a_protocol_that_is_no_number_is_refused(protocol):
    with pytest.raises(MalformedBatch, match="protocol"):
        decode(body_of(metrics(), protocol=protocol))


def test_a_body_that_would_not_fit_is_refused():
    with pytest.raises(TooLarge, match="1000 bytes"):
        decode(zstd(bytes(10_000_000)), max_bytes=1000)


def test_a_bomb_inside_a_column_is_refused_before_it_is_unpacked():
    rows = 2_000_000
    table = pa.table({"step": pa.array([0] * rows, pa.int32())})
    body = body_of(table, compression="zstd")
    assert len(body) < 10_000
    before = pa.total_allocated_bytes()
    with pytest.raises(MalformedBatch, match="without compression"):
        decode(body, max_bytes=100_000)
    assert pa.total_allocated_bytes() - before < 1_000_000


@pytest.mark.parametrize(
    ("change", "column", "reason"),
    [
        (lambda t: t.drop_columns(["name"]), "name", "missing"),
        (lambda t: t.append_column("extra", [[1] * t.num_rows]), "extra", "unknown column"),
        (lambda t: t.append_column("name", t["name"]), "name", "2 times"),
        (lambda t: t.set_column(0, "step", t["step"].cast(pa.int64())), "step", "int64.*must be int32"),
        (lambda t: t.set_column(0, "step", pa.nulls(t.num_rows, pa.int32())), "step", "null"),
        (lambda t: t.set_column(0, "step", pa.array([-1] * t.num_rows, pa.int32())), "step", "-1"),
        (lambda t: t.set_column(2, "merge", [["median"] * t.num_rows]), "merge", "median"),
        (lambda t: t.set_column(2, "merge", [["sum"] * t.num_rows]), "state", "1 numbers, found 2"),
        (lambda t: t.set_column(3, "state", [[[1.0, None]] * t.num_rows]), "state", "null"),
    ],
)
def test_a_wrong_column_is_named_with_its_table(change, column, reason):
    with pytest.raises(MalformedBatch, match=reason) as caught:
        decode(body_of(change(metrics())))
    assert (caught.value.table, caught.value.column) == ("step_metric", column)
    assert "step_metric" in str(caught.value)
    assert column in str(caught.value)


def test_an_unknown_table_and_one_that_comes_twice_are_refused():
    with pytest.raises(MalformedBatch, match="run"):
        decode(body_of(metrics(), name="run"))
    once = unpacked(encode({"step_metric": metrics()}))
    with pytest.raises(MalformedBatch, match="at most once"):
        decode(zstd(once + once))


def test_a_slice_is_judged_by_its_own_rows():
    table = metrics(3).set_column(3, "state", pa.array([[1.0, None], [1.0, 2.0], [1.0, 2.0]], pa.list_(pa.float64())))
    assert check_table("step_metric", table.slice(1)).num_rows == 2


def test_people_may_send_json_with_a_plain_value():
    tables = decode_json(b'{"step_metric": [{"step": 3, "name": "loss", "value": 0.5}]}')
    assert tables["step_metric"].to_pylist() == [{"step": 3, "name": "loss", "merge": "last", "state": [0.5]}]
    events = decode_json(b'{"event": [{"time": "2026-01-02T03:04:05", "kind": "note", "message": "hello"}]}')
    assert events["event"]["time"][0].as_py().year == 2026


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "an object"),
        (b'{"run": []}', "unknown table"),
        (b'{"event": 3}', "list of rows"),
        (b'{"step_metric": [{"step": 1.5, "name": "a", "value": 1}]}', "1.5 is not a whole number"),
        (b'{"step_metric": [{"step": 1, "name": "a", "value": "b"}]}', "state"),
        (b'{"step_metric": [{"step": 99999999999, "name": "a", "value": 1}]}', "step"),
        (b'{"step_metric": [{"step": 1, "name": "a", "value": 1, "extra": 1}]}', "extra"),
        (b'{"step_metric": [{"name": "a", "value": 1}]}', "null"),
    ],
)
def test_json_that_is_not_as_agreed_is_refused(document, reason):
    with pytest.raises(MalformedBatch, match=reason):
        decode_json(document)


def test_an_event_of_ours_is_a_row_of_the_table():
    row = check_table("event", event("note", "hello", {"a": 1}, step=3)).to_pylist()[0]
    assert (row["step"], row["kind"], json.loads(row["detail"])) == (3, "note", {"a": 1})
