"""Limits of people's queries: time, memory, rows, bytes, how many at once."""

import subprocess
import sys
import threading

import pytest
from support.attacks import ENDLESS, HEAVY, STRINGS
from support.patience import PATIENCE_S, until

from entrostat.storage.errors import QueryBusy
from entrostat.storage.running_query import resident_bytes
from entrostat.storage.store import Store
from entrostat.wire.errors import QueryError, QueryTimeout


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


@pytest.fixture(scope="module")
def narrow():
    with Store("duckdb::memory:", query_timeout_s=0.5, memory_limit_mb=256, max_temp_mb=64) as opened:
        yield opened


@pytest.mark.parametrize("what", HEAVY)
def test_what_would_never_end_ends_and_the_next_one_is_answered(narrow, what):
    with pytest.raises(QueryError):  # no time left, no memory left, or the engine's own limit
        narrow.query(HEAVY[what], 1_000_000)

    until(lambda: narrow.num_queries == 0)
    assert narrow.failure is None
    assert narrow.query("select 1 as x", 10).table.to_pylist() == [{"x": 1}]


def test_a_regular_expression_does_not_try_all_ways(narrow):
    sql = STRINGS.format("1e5") + "select regexp_matches(max(t), '(a|aa)+(a|aa)+(a|aa)+b') as found from s"

    assert narrow.query(sql, 1).table.to_pylist() == [{"found": False}]


SEARCH = STRINGS.format("4e6") + "select contains(max(t), left(max(t), 2000000) || 'b') from s"


def told(script):
    """What a process of its own says: the engine is at it for minutes, and the interpreter cannot end beside it."""
    script = f"""
import os
from entrostat.storage.running_query import QueryLimits
from entrostat.storage.store import Store
from entrostat.wire.errors import EntrostatError
def ask(sql):
    try:
        store.query(sql, 1)
    except EntrostatError as error:
        print(type(error).__name__, error, sep=": ", flush=True)
{script}
os._exit(0)
"""
    command = [sys.executable, "-P", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout.splitlines()


def test_who_asks_what_cannot_be_stopped_is_answered_and_the_slot_stays_taken():
    assert told(f"""
store = Store("duckdb::memory:", query_timeout_s=0.5, max_queries=1)
assert store.runaway_query(0.1) is None
ask({SEARCH!r})
assert store.num_queries == 1
ask("select 1")
print(store.runaway_query(0.1), store.runaway_query(0), store.runaway_query(10_000), sep="\\n", flush=True)
(running,) = store._queries._running
running._limits = QueryLimits(0.5, -(2**40))  # whatever the process takes is too much
print(store.runaway_query(0), flush=True)
""") == [
        "QueryTimeout: stopped after 0.5 s: ask for less at a time",
        "QueryBusy: 1 queries are running, as many as may: ask again in a moment",
        "a query cannot be stopped, 0.1 s after it was told to",
        "None",
        "None",
        "a query takes too much memory and cannot be stopped",
    ]


BIG_CELL = STRINGS.format("{}") + "select length(max(t)) as n, max(t) as cell from s"


def test_a_cell_that_does_not_fit_is_refused_with_the_way_out(small):
    with pytest.raises(QueryError, match=r"the column 'cell'.*left\(cell, 1000\)"):
        small.query(BIG_CELL.format(200_000), 10)

    assert small.query(BIG_CELL.format(50_000), 10).table.num_rows == 1


def test_rows_before_one_that_does_not_fit_are_given_and_it_says_so(small):
    sql = STRINGS.format("1e6") + "select t from s order by length(t)"
    answer = small.query(sql, 1000)

    assert answer.is_truncated
    assert [len(t) for t in answer.table["t"].to_pylist()] == [8 * 2**k for k in range(13)]  # 65,528 bytes together


@pytest.mark.parametrize(
    "columns",
    ["null, null, null", "true, false, true", "[null, null], [null]", "{'a': null, 'b': null}, 1"],
)
def test_values_that_take_no_memory_in_arrow_are_counted_all_the_same(small, columns):
    answer = small.query(f"select {columns} from range(1000000)", 1_000_000)

    assert answer.is_truncated
    assert answer.table.num_rows <= 100_000 / (8 * 2)


@pytest.mark.skipif(not resident_bytes(), reason="this system does not say how much memory a process has")
def test_a_query_that_takes_more_memory_than_the_engine_counts_is_stopped():
    # The engine does not count what the strings of one vector take: 2,048 times 512 kB.
    sql = (
        STRINGS.format("1e5")
        + "select sum(length(t || t || t || t || i)) from (select max(t) as t from s), range(1000000) r(i)"
    )
    with Store("duckdb::memory:", query_timeout_s=60.0, memory_limit_mb=256) as store:
        with pytest.raises(QueryError, match="more than 768 MiB of memory"):
            store.query(sql, 1)
        assert store.query("select 1 as x", 1).table.num_rows == 1


def test_one_row_and_an_exact_number_of_rows_are_whole(small):
    assert not small.query("from range(10)", 10).is_truncated
    assert not small.query("from range(0)", 10).is_truncated
    assert small.query("from range(0)", 10).table.num_rows == 0
    assert small.query("from range(1001)", 1000).is_truncated  # one more than a chunk


def test_a_type_that_arrow_does_not_have_is_the_persons_error(small):
    with pytest.raises(QueryError):
        small.query("select null::int" + "[]" * 100, 10)
