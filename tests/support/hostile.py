"""Bodies that nobody means well with: real ones that were damaged, and ones that our own encoder would never write."""

import pyarrow as pa
from hypothesis import strategies as st

from entrostat.wire.codec import encode
from entrostat.wire.tables import PROTOCOL, STEP_METRIC, TABLES

INTEGERS = [0, 1, -1, 7, 255, 65535, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63)]
"""Put into lengths, offsets, counts of the Arrow format."""


def value(field, row):
    kind = field.type
    if field.name == "detail":
        return f'{{"a": {row}}}'
    if pa.types.is_list(kind):
        return [1, 2][: row % 3]
    return {"string": f"aé{row}", "bool": True, "timestamp[us]": row}.get(str(kind), row % 10)


def sound_tables(num_rows=9):
    """Rows for every table, with nulls where they may be, in two chunks."""
    tables = {}
    for name, schema in TABLES.items():
        rows = [{field.name: value(field, row) for field in schema} for row in range(num_rows)]
        for row in rows[1::2]:
            row |= {field.name: None for field in schema if field.nullable}
        if name == "step_metric":
            rows = [row | {"merge": "mean", "state": [1.0, 2.0]} for row in rows]
        table = pa.Table.from_pylist(rows, schema=schema)
        tables[name] = pa.concat_tables([table, table.slice(2, 4)])
    return tables


def zstd(raw):
    return pa.compress(raw, "zstd").to_pybytes()


def unpacked(body):
    return pa.input_stream(pa.BufferReader(body), compression="zstd").read()


def metrics(num_rows=20):
    rows = [{"step": i, "name": f"n{i}", "merge": "mean", "state": [2.0, float(i)]} for i in range(num_rows)]
    return pa.Table.from_pylist(rows, schema=STEP_METRIC)


def written(table, name="step_metric", **options):
    """An uncompressed body with a stream of ``table``, whatever its types."""
    sink = pa.BufferOutputStream()
    metadata = {"table": name, "protocol": str(PROTOCOL)}
    schema = table.schema.with_metadata(metadata)
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    return sink.getvalue().to_pybytes()


def with_column(column, array):
    table = metrics()
    return table.set_column(table.schema.get_field_index(column), column, array)


def crafted():
    """Name -> body, each of which must be refused."""
    n = 20
    steps, names = pa.array(range(n), pa.int32()), pa.array([f"n{i}" for i in range(n)])
    columns = {
        "a dictionary for a text": ("name", names.dictionary_encode()),
        "large texts": ("name", names.cast(pa.large_string())),
        "views of texts": ("name", names.cast(pa.string_view())),
        "binary for a text": ("name", names.cast(pa.binary())),
        "64 bits for 32": ("step", steps.cast(pa.int64())),
        "a float for a step": ("step", steps.cast(pa.float32())),
        "an extension type": ("name", pa.ExtensionArray.from_storage(pa.json_(), names)),
        "run ends": ("step", pa.RunEndEncodedArray.from_arrays(pa.array([n], pa.int32()), pa.array([1], pa.int32()))),
        "only nulls": ("step", pa.nulls(n)),
        "lists of lists": ("state", pa.array([[[1.0], [2.0]]] * n)),
        "a fixed list": ("state", pa.array([[1.0, 2.0]] * n, pa.list_(pa.float64(), 2))),
        "a structure": ("state", pa.array([{"a": 1.0}] * n)),
        "a map": ("state", pa.array([[("a", 1.0)]] * n, pa.map_(pa.string(), pa.float64()))),
        "texts that are not UTF-8": ("name", _binary_as_text([b"\xff\xfe\xc0"] * n)),
        "a step below 0": ("step", pa.array([-1] * n, pa.int32())),
        "a name without end": ("name", pa.array(["x" * 2000] * n)),
    }  # fmt: skip
    made = {title: zstd(written(with_column(*column))) for title, column in columns.items()}
    good = written(metrics())
    event = {"step": 1, "time": 0, "kind": "note", "message": "x"}
    events = {
        "a time that Python cannot read": event | {"time": 2**62},
        "a message without end": event | {"message": "é" * (2**20 + 1)},
        "a time before the first": event | {"time": -1},
        "a detail that is no JSON": event | {"detail": "{{"},
        "a detail that SQL cannot read": event | {"detail": '{"a": NaN}'},
        "a detail nested without end": event | {"detail": '{"a":' * 5000 + "1" + "}" * 5000},
    }
    for title, row in events.items():
        made[title] = encode({"event": pa.Table.from_pylist([row], schema=TABLES["event"])})
    counted = {"step": 1, "name": "entropy", "bin": 0, "count": 1, "total": 1.0}
    for title, row in (("a bin that is none", counted | {"bin": 9999}), ("a count below 0", counted | {"count": -1})):
        made[title] = encode({"histogram": pa.Table.from_pylist([row], schema=TABLES["histogram"])})
    made |= {
        "an unknown table": zstd(written(metrics(), name="run")),
        "a path for a table": zstd(written(metrics(), name="../../raw.run")),
        "a table twice": zstd(good + good),
        "columns compressed once more": zstd(written(metrics(), compression="zstd")),
        "a stream and rubbish": zstd(good + b"rubbish"),
        "a frame and rubbish": zstd(good) + b"rubbish",
        "a frame that announces a window of 2 GiB": b"\x28\xb5\x2f\xfd\x00\xa8" + zstd(good)[6:],
        "nothing but the magic": b"\x28\xb5\x2f\xfd",
        "nothing": b"",
        "columns over each other": zstd(overlapping()),
    }
    return made


def _binary_as_text(values):
    array = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())


def overlapping():
    """A stream whose second and later buffers are told to lie where the first does."""
    # In a record batch's metadata a buffer is (offset, length), int64 each, in the order of the columns.
    table = pa.table(
        {
            "step": pa.array([0] * 1000, pa.int32()), "cell": pa.array([0] * 1000, pa.int32()),
            "count": pa.array([0] * 1000, pa.int64()),
            **{name: pa.array([0.0] * 1000) for name in ("sum_logp", "sum_advantage", "sum_product")},
        }
    )  # fmt: skip
    sound = bytearray(written(table.cast(TABLES["cell"]), name="cell"))
    first = sound.index((0).to_bytes(8, "little") + (4000).to_bytes(8, "little"))
    for column in range(6):  # of each a buffer for its nulls, empty, and one for its values
        at = first + 32 * column
        sound[at : at + 8] = bytes(8)
    total, kept = 40_000, 8000
    length = sound.index(total.to_bytes(8, "little"))
    sound[length : length + 8] = kept.to_bytes(8, "little")
    end = len(sound) - 8  # where the stream says that it is over
    return bytes(sound[: end - total + kept] + sound[end:])


def bombs(num_bytes):
    """Name -> (body, whether its size is what must be named): small, and ``num_bytes`` or more when unpacked."""
    zeros = zstd(bytes(num_bytes))
    rows = num_bytes // 4
    column = pa.table({"step": pa.array([0] * rows, pa.int32())})
    return {
        "zeros": zeros,
        "frames of zeros": zstd(bytes(num_bytes // 8)) * 16,
        "a column of zeros inside": zstd(written(column, compression="zstd")),
    }


def damaged(raw):
    """Bytes of ``raw`` with damage done: cut, flipped, parts moved, left out or repeated, numbers put in."""
    place = st.integers(0, len(raw) - 1)
    word = st.tuples(place, st.sampled_from(INTEGERS), st.sampled_from((4, 8)))
    return st.one_of(
        place.map(lambda end: raw[:end]),
        st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=5).map(lambda done: _flipped(raw, done)),
        st.lists(word, min_size=1, max_size=4).map(lambda done: _numbered(raw, done)),
        st.tuples(place, place).map(lambda pair: raw[: min(pair)] + raw[max(pair) :]),
        st.tuples(place, place, place).map(lambda p: raw[: p[2]] + raw[min(p[:2]) : max(p[:2])] + raw[p[2] :]),
    )


def _flipped(raw, done):
    made = bytearray(raw)
    for place, byte in done:
        made[place] = byte
    return bytes(made)


def _numbered(raw, done):
    made = bytearray(raw)
    for place, number, size in done:
        at = place // 4 * 4  # where the Arrow format keeps its numbers
        made[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(made[: len(raw)])
