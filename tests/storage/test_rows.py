"""Rows go in sorted: those that are already are not sorted again, and the others are."""

import numpy as np
import pyarrow as pa
import pytest

from entrostat.storage.rows import is_sorted


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


_TOKEN = {"step": 0, "token_id": 1, "logp": -1.0, "entropy": 1.0, "reason": "all", "prob": 1.0}


def test_tokens_that_come_in_any_order_lie_in_order(store, produce):
    order = np.random.default_rng(0).permutation(50)
    produce().send(token=[_TOKEN | {"seq": int(i) // 10, "pos": int(i) % 10} for i in order])
    with store._database.reading() as cursor:
        found = cursor.execute("select seq, pos from raw.token_row order by rowid").fetchall()
    assert found == sorted(found)
    assert len(found) == 50
