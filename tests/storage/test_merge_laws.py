"""The view ``step_metric`` adds parts up by the laws of ``Part.__add__``, whatever the parts."""

import math

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entrostat.storage.store import Store
from entrostat.wire.codec import check_table
from entrostat.wire.mergeable import Part, merged
from entrostat.wire.messages import StreamOpen
from entrostat.wire.tables import STEP_METRIC

NUM_RANKS = 3
value = st.floats(-1e6, 1e6).map(lambda x: round(x, 6))
count = st.integers(0, 10_000).map(float)
state = {
    "mean": st.tuples(count, value),
    "estimate": st.tuples(count, value, st.floats(0, 1e6)),
    "sum": st.tuples(value),
    "max": st.tuples(st.one_of(value, st.just(math.nan), st.just(math.inf))),
    "std": st.tuples(count, value, st.floats(0, 1e6)),
    "comoment": st.tuples(count, value, value, value),
    "last": st.tuples(value),
}


@st.composite
def signal(draw):
    """One signal: its rule and the parts of some of the ranks."""
    rule = draw(st.sampled_from(sorted(state)))
    ranks = draw(st.lists(st.integers(0, NUM_RANKS - 1), min_size=1, max_size=NUM_RANKS, unique=True))
    return {rank: Part(rule, draw(state[rule])) for rank in sorted(ranks)}


@pytest.fixture(scope="module")
def streams():
    with Store("duckdb::memory:", linger_s=0.0) as store:
        for rank in range(NUM_RANKS):
            opening = StreamOpen(
                run_id="r", session_id="0" * 32, rank=rank, world_size=NUM_RANKS, started="2026-01-01T00:00:00Z"
            )
            store.open_stream(f"{rank:032x}", opening)
        yield store


step_counter = iter(range(10**9))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(signal(), min_size=1, max_size=12))
def test_sql_adds_parts_as_python_does(streams, signals):
    step = next(step_counter)
    for rank in range(NUM_RANKS):
        rows = [
            {"step": step, "name": f"s{i}", "merge": parts[rank].merge, "state": list(parts[rank].state)}
            for i, parts in enumerate(signals)
            if rank in parts
        ]
        if rows:
            table = check_table("step_metric", pa.Table.from_pylist(rows, schema=STEP_METRIC))
            streams.add_batch(f"{rank:032x}", step, {"step_metric": table}, 0).result(10)

    found = streams.query(f"select * from step_metric where step = {step}", 100).table.to_pylist()

    assert len(found) == len(signals)
    for row in found:
        parts = signals[int(row["name"][1:])]
        whole = merged([parts[rank] for rank in sorted(parts)])
        value = whole.value
        assert row["value"] == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True))
        se = whole.standard_error
        assert row["se"] == (None if se is None else pytest.approx(se, rel=1e-9))
        assert row["num_parts"] == len(parts)
        assert row["complete"] == (len(parts) == NUM_RANKS)


def test_a_mean_over_no_tokens_is_null_and_not_zero(produce, ask):
    rank0 = produce(world_size=1)
    rank0.send(step_metric=[{"step": 1, "name": "entropy_pos", "merge": "mean", "state": [0, 0]}])

    assert ask("select value from step_metric where name = 'entropy_pos'") == [(None,)]


def test_of_what_a_rank_says_twice_the_last_word_counts_and_of_ranks_the_lowest(produce, ask):
    rank1, rank0 = produce(rank=1, world_size=2), produce(rank=0, world_size=2)
    rank1.metric(1, 5.0, "trainer/lr")
    rank0.metric(1, 1.0, "trainer/lr")
    rank0.metric(1, 2.0, "trainer/lr")

    assert ask("select value, num_parts from step_metric") == [(2.0, 3)]
