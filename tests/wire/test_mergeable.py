"""Adding parts up gives what the whole would have given: in any order, for any split."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrostat.wire.mergeable import STATE_LENGTH, Part, comoment_of, largest_of, mean_of, merged, std_of

number = st.floats(-1e3, 1e3)
values = st.lists(number, min_size=1, max_size=40)
pairs = st.lists(st.tuples(number, number), min_size=1, max_size=40)


def cut(data, places):
    """``data`` in consecutive pieces, empty ones included."""
    places = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


def agrees(part, other):
    return part.merge == other.merge and np.allclose(part.state, other.state, rtol=1e-9, atol=1e-6)


def of(rule, data):
    """The part of ``rule`` that says what ``data`` (pairs) holds."""
    x, y = np.array([a for a, _ in data]), np.array([b for _, b in data])
    return {
        "mean": lambda: mean_of(x),
        "sum": lambda: Part("sum", (float(x.sum()),)),
        "estimate": lambda: Part("estimate", (float(x.size), float(x.sum()), float((y**2).sum()))),
        "max": lambda: largest_of(x) or Part("max", (-math.inf,)),
        "std": lambda: std_of(x),
        "comoment": lambda: comoment_of(x, y),
    }[rule]()


RULES = sorted(set(STATE_LENGTH) - {"last"})


@pytest.mark.parametrize("rule", RULES)
@given(data=pairs, places=st.lists(st.integers(0, 1000), max_size=5))
def test_any_split_adds_up_to_the_whole(rule, data, places):
    assert agrees(merged([of(rule, piece) for piece in cut(data, places)]), of(rule, data))


@pytest.mark.parametrize("rule", RULES)
@given(a=pairs, b=pairs, c=pairs)
def test_order_and_brackets_do_not_matter(rule, a, b, c):
    x, y, z = of(rule, a), of(rule, b), of(rule, c)
    assert agrees(x + y, y + x)
    assert agrees((x + y) + z, x + (y + z))


@given(values)
def test_values_are_those_of_the_textbook(data):
    assert mean_of(np.array(data)).value == pytest.approx(math.fsum(data) / len(data), abs=1e-9)
    assert largest_of(np.array(data)).value == max(data)
    if len(data) > 1:
        assert std_of(np.array(data)).value == pytest.approx(np.std(data, ddof=1), rel=1e-9, abs=1e-9)


@given(pairs)
def test_the_comoment_is_the_covariance_over_n(data):
    x, y = zip(*data, strict=True)
    expected = np.cov(x, y, ddof=0)[0, 1] if len(data) > 1 else 0.0
    assert comoment_of(np.array(x), np.array(y)).value == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_a_weighted_mean_counts_each_value_by_its_weight():
    assert mean_of(np.array([1.0, 4.0]), np.array([3.0, 1.0])).value == 1.75


def test_nothing_measured_is_none_never_zero():
    nothing = np.array([])
    assert [mean_of(nothing).value, std_of(nothing).value, comoment_of(nothing, nothing).value] == [None] * 3
    assert largest_of(nothing) is None
    assert std_of(np.array([1.0])).value is None


def test_a_part_of_nothing_changes_nothing():
    for rule in ("mean", "std", "comoment"):
        something = of(rule, [(1.0, 2.0), (4.0, 1.0)])
        nothing = {"mean": mean_of, "std": std_of}.get(rule, lambda x: comoment_of(x, x))(np.array([]))
        assert something + nothing == something
        assert nothing + something == something


def test_a_nan_survives_the_maximum_in_either_order():
    nan, one = Part("max", (math.nan,)), Part("max", (1.0,))
    assert math.isnan((nan + one).value)
    assert math.isnan((one + nan).value)
    assert (Part("max", (math.inf,)) + Part("max", (-math.inf,))).value == math.inf


def test_the_last_is_the_left_one_which_is_the_lowest_rank():
    assert (Part("last", (1.0,)) + Part("last", (2.0,))).value == 1.0


def test_only_an_estimate_has_a_standard_error():
    assert Part("estimate", (4.0, 8.0, 16.0)).standard_error == 1.0
    assert Part("estimate", (0.0, 0.0, 0.0)).standard_error is None
    assert Part("mean", (4.0, 8.0)).standard_error is None


def test_a_wrong_rule_or_length_is_refused_by_name():
    with pytest.raises(ValueError, match="median"):
        Part("median", (1.0,))
    with pytest.raises(ValueError, match="state of 1"):
        Part("mean", (1.0,))
    with pytest.raises(ValueError, match="cannot add"):
        Part("sum", (1.0,)) + Part("max", (1.0,))
