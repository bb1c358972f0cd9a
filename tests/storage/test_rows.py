"""Rows go in sorted: those that are already are not sorted again, and the others are."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrostat.storage import rows as rows_module
from entrostat.storage.rows import in_order, is_sorted


def rows(*keys):
    columns = list(zip(*keys, strict=True)) if keys else [(), ()]
    return pa.table({"step": pa.array(columns[0], pa.int32()), "pos": pa.array(columns[1], pa.int32())})


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([], True),
        ([(5, 5)], True),
        ([(1, 1), (1, 1), (1, 2), (2, 0)], True),
        ([(2, 0), (1, 0)], False),
        ([(1, 1), (1, 0)], False),
        ([(1, 0), (2, 5), (2, 4)], False),
        ([(1, 2), (2, 1), (3, 0)], True),
    ],
)
def test_the_order_is_by_the_first_key_then_the_next(keys, expected):
    assert is_sorted(rows(*keys), ("step", "pos")) is expected


def test_over_the_border_of_two_batches():
    both = pa.concat_tables([rows((3, 0), (3, 1)), rows((2, 0), (2, 1))])
    assert not is_sorted(both, ("step", "pos"))
    assert is_sorted(pa.concat_tables([rows((2, 0)), rows((3, 0))]), ("step", "pos"))


def test_names_are_left_to_the_database():
    assert not is_sorted(pa.table({"name": ["a", "b"]}), ("name",))


KEYS = ("run", "step", "stream", "pos")


def part(stream, steps):
    """A batch: of each step some rows, in order."""
    found = [(1, step, stream, pos) for step, num in steps for pos in range(num)]
    columns = list(zip(*found, strict=True))
    return pa.table({name: pa.array(column, pa.int32()) for name, column in zip(KEYS, columns, strict=True)})


batches = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=4, unique_by=lambda s: s[0]),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@given(batches)
def test_the_steps_of_several_streams_are_put_in_order_and_nothing_is_lost(drawn):
    parts = [part(stream, sorted(steps)) for stream, steps in drawn]
    found = in_order(parts, KEYS)
    as_rows = sorted(tuple(row.values()) for one in parts for row in one.to_pylist())
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == as_rows
    times_sent = [(stream, step) for stream, steps in drawn for step, _ in steps]
    if len(set(times_sent)) == len(times_sent):
        assert is_sorted(found, KEYS)


def test_more_pieces_than_are_worth_it_stay_as_they_came(monkeypatch):
    monkeypatch.setattr(rows_module, "_MOST_PIECES", 3)
    parts = [part(1, [(5, 2), (6, 2)]), part(0, [(5, 2), (6, 2)])]
    assert in_order(parts, KEYS).equals(pa.concat_tables(parts))


def test_what_has_no_steps_stays_as_it_came():
    parts = [pa.table({"time": [2]}), pa.table({"time": [1]})]
    assert in_order(parts, ("run", "time")).to_pydict() == {"time": [2, 1]}


_TOKEN = {"step": 0, "token_id": 1, "logp": -1.0, "entropy": 1.0, "reason": "all", "prob": 1.0}


def test_tokens_that_come_in_any_order_lie_in_order(store, produce):
    order = np.random.default_rng(0).permutation(50)
    produce().send(token=[_TOKEN | {"seq": int(i) // 10, "pos": int(i) % 10} for i in order])
    with store._database.reading() as cursor:
        found = cursor.execute("select seq, pos from raw.token_row order by rowid").fetchall()
    assert found == sorted(found)
    assert len(found) == 50


@pytest.mark.parametrize("num_rows", [rows_module.schema.ROW_GROUP_ROWS * 2 + 77, 300])
def test_rows_lie_in_groups_that_the_engine_writes_at_once(store, produce, num_rows):
    tokens = [_TOKEN | {"seq": i // 500, "pos": i % 500} for i in range(num_rows)]
    produce().send(token=tokens)
    with store._database.reading() as cursor:
        groups = cursor.execute(
            "select max(start + count) from pragma_storage_info('raw.token_row') where column_name = 'pos' "
            "and segment_type <> 'VALIDITY' group by row_group_id order by row_group_id"
        ).fetchall()
        assert cursor.execute("select count(*), sum(pos) from raw.token_row").fetchall() == [
            (num_rows, sum(row["pos"] for row in tokens))
        ]
    whole, rest = divmod(num_rows, rows_module.schema.ROW_GROUP_ROWS)
    assert [size for (size,) in groups] == [rows_module.schema.ROW_GROUP_ROWS] * whole + [rest]
