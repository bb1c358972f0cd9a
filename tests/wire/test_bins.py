"""One set of bins for every run: what falls where, and that counts add up."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrostat.wire.bins import HIGH, LOW, MAX_BIN, bin_of, edges_of, histogram_of

number = st.floats(-100, 100) | st.floats(-1e-3, 1e-3)


@given(st.floats(allow_nan=False))
def test_a_value_lies_within_the_edges_of_its_bin(value):
    index = int(bin_of(np.array(value)))
    low, high = edges_of(index)
    if index == 0:
        assert abs(value) < high
    elif index > 0:
        assert low <= value < high or value == high == np.inf
    else:
        assert low < value <= high or value == low == -np.inf


def test_an_edge_belongs_to_the_bin_that_it_opens():
    for index in range(1, MAX_BIN + 1):
        low, _ = edges_of(index)
        assert bin_of(np.array([low, np.nextafter(low, 0), -low])).tolist() == [index, index - 1, -index]


def test_edges_meet_from_the_first_to_the_last():
    edges = [edges_of(index) for index in range(MAX_BIN + 1)]
    assert edges[0] == (0.0, 2.0**LOW)
    assert edges[-1] == (2.0**HIGH, np.inf)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(edges))
    assert edges_of(-3) == (-edges_of(3)[1], -edges_of(3)[0])


@given(st.lists(number, max_size=50), st.lists(number, max_size=50))
def test_counts_of_two_parts_add_up_to_those_of_the_whole(left, right):
    added = {}
    for part in (left, right):
        for index, count, total in zip(*histogram_of(np.array(part)), strict=True):
            old_count, old_total = added.get(index, (0, 0.0))
            added[index] = (old_count + count, old_total + total)
    index, count, total = histogram_of(np.array(left + right))
    assert sorted(added) == index.tolist()
    assert [added[i][0] for i in index] == count.tolist()
    assert np.allclose([added[i][1] for i in index], total)


def test_dtypes_are_those_of_the_table_even_without_values():
    for part in (np.array([]), np.array([[0.5, 2.0]])):
        assert [a.dtype for a in histogram_of(part)] == [np.int16, np.int64, np.float64]


def test_nan_and_a_bin_beyond_the_last_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        bin_of(np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match=str(MAX_BIN + 1)):
        edges_of(MAX_BIN + 1)
