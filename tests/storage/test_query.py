"""Limits of people's queries: time, rows, bytes, how many at once."""

import threading

import pytest
from support.patience import until

from entrostat.storage.errors import QueryBusy
from entrostat.storage.store import Store
from entrostat.wire.errors import QueryError, QueryTimeout

ENDLESS = "select count(*) from range(10000000) a, range(10000000) b"


@pytest.fixture
def small():
    with Store("duckdb::memory:", query_timeout_s=2.0, max_queries=1, max_result_bytes=100_000) as opened:
        yield opened


def test_a_query_that_takes_too_long_is_stopped(small):
    with pytest.raises(QueryTimeout, match=r"2 s"):
        small.query(ENDLESS, 10)

    assert small.query("select 1 as x", 10).table.to_pylist() == [{"x": 1}]


def test_rows_are_cut_at_the_limit_and_it_says_so(small):
    cut, whole = small.query("from range(100)", 10), small.query("from range(10)", 10)

    assert (cut.table.num_rows, cut.is_truncated) == (10, True)
    assert (whole.table.num_rows, whole.is_truncated) == (10, False)


def test_bytes_are_cut_at_the_limit_and_it_says_so(small):
    answer = small.query("select i, i + 1, i + 2 from range(1000000) r(i)", 1_000_000)

    assert answer.is_truncated
    assert answer.table.num_rows < 100_000


def test_more_queries_than_slots_are_told_to_come_back(small):
    small._queries._patience_s = 0.0

    def ask():
        with pytest.raises(QueryTimeout):
            small.query(ENDLESS, 10)

    first = threading.Thread(target=ask)
    first.start()
    until(lambda: small._queries._slots._value == 0)  # the one slot is taken
    with pytest.raises(QueryBusy, match="again"):
        small.query("select 1", 10)
    first.join()


def test_the_engines_own_words_reach_the_person(small):
    with pytest.raises(QueryError, match="nothing_of_the_kind"):
        small.query("select nothing_of_the_kind from run", 10)
    with pytest.raises(QueryError, match="cannot be read"):
        small.query("select from where", 10)
    with pytest.raises(QueryError):
        small.query("select 'x'::int", 10)
