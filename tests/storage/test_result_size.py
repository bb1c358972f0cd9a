"""How large a result is, beside what Python makes of it."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrostat.storage.result_size import VALUE_BYTES, cut_to, size_of


def batch(**columns):
    return pa.RecordBatch.from_pydict({name: pa.array(*given) for name, given in columns.items()})


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ({"a": ([1, 2, 3],)}, 3),
        ({"a": ([None] * 5,), "b": ([True] * 5,)}, 10),
        ({"a": ([[None] * 4, [], None], pa.list_(pa.null()))}, 3 + 4),
        ({"a": ([[[1], [2, 3]]], pa.list_(pa.list_(pa.int8())))}, 1 + 2 + 3),
        ({"a": ([{"x": 1, "y": None}], pa.struct({"x": pa.int8(), "y": pa.null()}))}, 1 + 2),
        ({"a": ([[("k", 1)], [("k", 1), ("l", 2)]], pa.map_(pa.string(), pa.int8()))}, 2 + 3 + 3),
        ({"a": ([[1, 2], [3, 4]], pa.list_(pa.int8(), 2))}, 2 + 4),
    ],
)
def test_every_value_counts_even_where_arrow_needs_no_memory_for_it(columns, values):
    made = batch(**columns)

    assert size_of(made) >= VALUE_BYTES * values
    assert size_of(made) <= max(made.nbytes, VALUE_BYTES * values)


def test_a_long_text_counts_as_long_as_it_is():
    assert size_of(batch(a=(["x" * 1000],))) >= 1000


@given(lengths=st.lists(st.integers(0, 300), max_size=30), max_bytes=st.integers(0, 3000), begin=st.integers(0, 5))
def test_what_is_cut_fits_and_one_row_more_would_not(lengths, max_bytes, begin):
    whole = batch(
        a=(["x" * n for n in lengths], pa.string()), b=([[n] * (n % 4) for n in lengths], pa.list_(pa.int16()))
    )
    whole = whole.slice(begin)  # as the rest of a chunk of which some rows are taken
    kept = cut_to(whole, max_bytes)

    assert kept.equals(whole.slice(0, kept.num_rows))
    assert kept.num_rows == 0 or size_of(kept) <= max_bytes
    assert kept.num_rows == whole.num_rows or size_of(whole.slice(0, kept.num_rows + 1)) > max_bytes
