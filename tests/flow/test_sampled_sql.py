"""What people ask of token rows in SQL, weighted by 1 / prob, is unbiased: 400 draws of the same step as 400 steps."""

import uuid
from datetime import UTC, datetime

import numpy as np
import pytest
from support.steps import captured, random_step

from entrostat.probe.definitions import Settings
from entrostat.probe.reduce import Reducer
from entrostat.probe.signals import signals_of
from entrostat.probe.step import gather
from entrostat.storage.store import Store
from entrostat.wire import codec
from entrostat.wire.messages import StreamOpen

DRAWS = 400
BUDGET = 40
WEIGHTED = {
    "entropy_mean": "sum(entropy / prob) / sum(1 / prob)",
    "cov_mean": "sum(cov / prob) / sum(1 / prob)",
    "scope_score": "sum(scope / prob) / sum(1 / prob)",
}
STORED_TO = 1e-4
"""The store rounds token rows to 4 decimals."""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The step's exact values, and a store that holds it DRAWS times, each with another sample of its tokens."""
    step = random_step(0, num_prompts=8, longest=9)
    reduce = Reducer(Settings(group_size=4))
    tables = [reduce(number, [captured(step, budget=BUDGET, seed=number)], [], {}) for number in range(DRAWS)]
    exact = {name: part.value for name, part in signals_of(gather([captured(step)]), [], Settings()).items()}
    with Store(f"duckdb://{tmp_path_factory.mktemp('drawn') / 'drawn.duckdb'}", linger_s=0.0) as store:
        stream = uuid.uuid4().hex
        store.open_stream(stream, StreamOpen(run_id="drawn", session_id=uuid.uuid4().hex, started=datetime.now(UTC)))
        for seq, rows in enumerate(tables):
            body = codec.encode({"token": rows["token"]})
            store.add_batch(stream, seq, codec.decode(body), len(body)).result(30)
        yield exact, store


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_weighted_mean_in_sql_is_unbiased(drawn, name):
    exact, store = drawn

    rows = store.query(f"select step, {WEIGHTED[name]} as v from token group by step", 1000).table.to_pylist()

    values = np.array([row["v"] for row in rows])
    assert values.size == DRAWS
    assert values.mean() == pytest.approx(exact[name], abs=4 * values.std() / np.sqrt(DRAWS) + STORED_TO)


def test_without_the_weights_it_would_be_wrong(drawn):
    """The rows were chosen for their entropy, among others: a plain mean is far off, so the test above can fail."""
    exact, store = drawn

    rows = store.query("select avg(entropy) as v from token group by step", 1000).table.to_pylist()

    values = np.array([row["v"] for row in rows])
    assert abs(values.mean() - exact["entropy_mean"]) > 10 * values.std() / np.sqrt(DRAWS)


def test_the_weights_of_every_draw_add_up_to_the_tokens_there_were(drawn):
    exact, store = drawn

    rows = store.query("select sum(1 / prob) as n, count(*) as k from token group by step", 1000).table.to_pylist()

    assert {row["k"] for row in rows} == {BUDGET}
    assert [row["n"] for row in rows] == pytest.approx([exact["num_tokens"]] * DRAWS, rel=1e-3)
