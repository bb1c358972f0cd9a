"""``d_collapse`` against its definition, from the tokens themselves; and what a resume does to it."""

import numpy as np
import pytest

from entrostat.storage.baseline import threshold_of
from entrostat.wire.bins import edges_of, histogram_of

rng = np.random.default_rng(0)


def entropies(step, size=2000):
    return rng.gamma(2.0, 0.4 / (1 + 0.1 * step), size)


def rows(step, values):
    index, count, total = histogram_of(values)
    return [
        {"step": step, "name": "entropy", "bin": int(i), "count": int(c), "total": float(t)}
        for i, c, t in zip(index, count, total, strict=True)
    ]


def collapse(ask, name="d_collapse"):
    return dict(ask(f"select step, value from step_metric where name = '{name}' order by step"))


def test_d_collapse_over_two_ranks_is_what_the_tokens_say(produce, ask):
    ranks = [produce(rank=k, world_size=2, settings={"baseline_steps": 3}) for k in (0, 1)]
    values = {step: [entropies(step), entropies(step, 1000)] for step in range(1, 9)}
    for step, parts in values.items():
        for rank, part in zip(ranks, parts, strict=True):
            rank.send(histogram=rows(step, part))
    ((threshold, rate, first, last, num_tokens),) = ask(
        "select threshold, rate, from_step, to_step, num_tokens from baseline"
    )
    base = np.concatenate([v for step in (1, 2, 3) for v in values[step]])

    assert (first, last, num_tokens) == (1, 3, base.size)
    assert threshold == pytest.approx(np.quantile(base, 0.8), rel=2 ** (1 / 16) - 1)
    assert rate == np.mean(base >= threshold)
    share = {step: np.mean(np.concatenate(v) >= threshold) for step, v in values.items()}
    assert collapse(ask, "forking_rate") == pytest.approx(share)
    assert collapse(ask) == pytest.approx({step: 1 - s / rate for step, s in share.items()})
    assert ask("select bool_and(complete) from step_metric where name = 'd_collapse'") == [(True,)]


def test_a_baseline_waits_for_the_slower_rank_and_then_never_changes(produce, ask):
    fast, slow = (produce(rank=k, world_size=2, settings={"baseline_steps": 2}) for k in (0, 1))
    for step in range(1, 7):
        fast.send(histogram=rows(step, entropies(step)))
    assert ask("select count(*) from baseline") == [(0,)]
    for step in range(1, 4):
        slow.send(histogram=rows(step, entropies(step)))
    before = ask("select * from baseline")
    slow.send(histogram=rows(1, entropies(1)))

    assert len(before) == 1
    assert ask("select * from baseline") == before
    assert set(collapse(ask)) == set(range(1, 7))


def test_a_rank_that_never_comes_does_not_hold_it_up_for_ever(produce, ask):
    alone = produce(rank=0, world_size=2, settings={"baseline_steps": 2})
    for step in range(1, 25):
        alone.send(histogram=rows(step, entropies(step, 100)))

    assert ask("select to_step from baseline") == [(2,)]


def test_a_resumed_run_goes_on_with_its_baseline(produce, ask):
    first = produce(settings={"baseline_steps": 2})
    for step in range(1, 6):
        first.send(histogram=rows(step, entropies(step)))
    before = ask("select * from baseline")
    second = produce(session=2, resume_step=3)
    late = entropies(20)
    second.send(histogram=rows(4, late))

    assert ask("select * from baseline") == before
    assert collapse(ask, "forking_rate")[4] == np.mean(late >= before[0][1])
    assert set(collapse(ask)) == {1, 2, 3, 4}


def test_the_threshold_is_an_edge_at_which_something_is_left():
    assert threshold_of([]) is None
    assert threshold_of([(0, 10)]) == (0, 1.0, 10)
    assert threshold_of([(0, 95), (40, 5)]) == (40, 0.05, 100)
    index, rate, _ = threshold_of([(10, 50), (11, 31), (12, 19)])
    assert (edges_of(index)[0], rate) == (edges_of(12)[0], 0.19)


def test_the_change_of_entropy_is_to_the_next_step_that_is_there(produce, ask):
    one = produce()
    for step, value in ((1, 1.0), (2, 0.5), (4, 0.75)):
        one.metric(step, value)

    assert collapse(ask, "d_entropy") == {1: -0.5, 2: 0.25}
