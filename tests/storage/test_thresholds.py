"""A selection over the whole step, from histograms alone, against the exact gather of all tokens."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.patience import until

from entrostat.storage.thresholds import SCORES, draw_threshold, of_run, shares, threshold
from entrostat.wire.bins import LOW, bin_of, edges_of, histogram_of
from entrostat.wire.interventions import BY_NAME, INTERVENTIONS
from entrostat.wire.messages import ActiveIntervention, DesiredState

EPS = 2.0**LOW


def merged(parts):
    """The histograms of ranks or micro-batches, added up: bins, counts and sums."""
    added = {}
    for values in parts:
        for index, count, total in zip(*histogram_of(values), strict=True):
            held = added.get(int(index), (0, 0.0))
            added[int(index)] = (held[0] + int(count), held[1] + float(total))
    counts, totals = zip(*added.values(), strict=True)
    return np.array(list(added)), np.array(counts), np.array(totals)


def exact(values, share, is_positive):
    """The k-th highest score, k the share of all rounded down and at least one; None where nothing may be chosen."""
    eligible = np.sort(values[values > 0] if is_positive else values)[::-1]
    k = min(max(1, int(np.floor(share * values.size + 1e-9))), eligible.size)
    return (float(eligible[k - 1]), k) if k else (None, 0)


scores = st.one_of(
    st.just(0.0), st.floats(-80.0, 80.0), st.floats(-1e-3, 1e-3), st.sampled_from([0.25, -0.25, 1.0, EPS, -EPS])
)


@settings(max_examples=300, deadline=None)
@given(
    ranks=st.lists(st.lists(scores, max_size=60), min_size=1, max_size=4).filter(any),
    share=st.floats(1e-4, 1.0),
    is_positive=st.booleans(),
)
def test_it_is_the_exact_score_up_to_its_bin_and_chooses_as_many_up_to_the_tokens_of_that_bin(
    ranks, share, is_positive
):
    parts = [np.array(rank, np.float64) for rank in ranks]
    values = np.concatenate(parts)
    found = threshold(*merged(parts), share, is_positive)
    wanted, k = exact(values, share, is_positive)

    if wanted is None or (is_positive and not (bin_of(values) > 0).any()):
        assert found is None
        return
    index = int(bin_of(np.array([wanted]))[0])
    is_in_bin = bin_of(values) == index
    chosen = values >= found
    assert chosen.any()
    if is_positive:
        assert found > 0
        if index == 0:  # the middle bin holds the zeros and is not entered: what lies above it, and no more
            assert np.array_equal(chosen, bin_of(values) > 0)
            return
    low, high = (-EPS, EPS) if index == 0 else edges_of(index)
    assert max(low, -1e6) <= found <= high
    # A score on the edge between two negative bins belongs to the lower one.
    assert abs(int(chosen.sum()) - k) < int(is_in_bin.sum()) + int((values == low).sum()) + 1


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("num_zeros", [0, 5_000])
def test_the_share_is_met_within_the_tokens_of_one_bin(share, num_zeros):
    random = np.random.default_rng(0)
    p = random.beta(0.5, 0.2, 10_000)
    values = p * (1 - p) * random.choice([0.5, 1.2], 10_000)
    values[:num_zeros] = 0.0  # responses with A <= 0
    ranks = np.split(random.permutation(values), 4)

    found = threshold(*merged(ranks), share, is_positive=True)

    chosen = (values >= found).sum()
    index = int(bin_of(np.array([found]))[0])
    assert abs(chosen - share * values.size) < (bin_of(values) == index).sum()
    assert chosen > 0


def test_zeros_are_never_chosen():
    zeros = np.zeros(100)

    assert threshold(*merged([zeros]), 0.5, is_positive=True) is None
    values = np.r_[zeros, 0.1]
    found = threshold(*merged([values]), 0.5, is_positive=True)
    assert (values >= found).tolist() == [False] * 100 + [True]


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05])
def test_scores_that_pile_up_below_their_highest_value_are_chosen(share):
    """p(1-p)A with one advantage: a third of the tokens lies in the two bins below A / 4."""
    values = (p := np.random.default_rng(1).uniform(0, 1, 20_000)) * (1 - p) * 1.2

    found = threshold(*merged(np.split(values, 4)), share, is_positive=True)
    assert 0 < (values >= found).sum() < 0.25 * values.size
    assert found < values.max()


def test_equal_scores_are_chosen_however_their_sum_is_rounded():
    for value in (0.1, 0.3, 1 / 3, 0.7, 1.9):
        values = np.full(997, value, np.float32).astype(float)
        assert (values >= threshold(*merged([values[:500], values[500:]]), 0.01)).all()


def test_without_tokens_there_is_none():
    assert threshold(np.array([], int), np.array([], int), np.array([]), 0.1) is None


def test_every_method_with_a_threshold_has_a_score_and_no_other():
    assert {i.name for i in INTERVENTIONS if i.has_threshold} == set(SCORES)
    for name, score in SCORES.items():
        assert score.share in {p.name for p in BY_NAME[name].params}


def test_only_what_is_to_choose_over_the_step_gets_one():
    state = DesiredState(
        interventions=[
            ActiveIntervention(name="scope", params={"q": 0.1}, because="b", selection="step"),
            ActiveIntervention(name="kl_cov", because="b", selection="step"),
            ActiveIntervention(name="forking_tokens", because="b"),
            ActiveIntervention(name="clip_cov", params={"w_high": 3.0}, because="b", selection="step"),
        ]
    )

    assert shares(state) == {"scope": (0.1,), "kl_cov": (0.002,), "clip_cov": (0.0002, 1.0, 3.0)}


@pytest.mark.parametrize("share", [0.0002, 0.01, 0.2])
def test_clip_cov_leaves_out_its_share_of_the_step_however_small_the_batches(share):
    values = np.random.default_rng(0).normal(size=60_000) * 2
    bins, counts, _ = merged(np.split(values, 4))

    found = draw_threshold(bins, counts, share, 1.0, 5.0)

    in_band = np.mean((values > 1) & (values < 5))
    assert (1 - found) * in_band == pytest.approx(share, rel=0.02)  # a bin is 4.4 % wide, and cut at the band's ends


def test_clip_cov_takes_the_whole_band_where_it_holds_too_few():
    bins, counts, _ = merged([np.array([0.1] * 99 + [2.0])])

    assert draw_threshold(bins, counts, 0.5, 1.0, 5.0) == 0.0
    assert draw_threshold(np.array([], int), np.array([], int), 0.5, 1.0, 5.0) is None


# In a store ----------------------------------------------------------------------------------------------------------


def rows(step, values, name="scope_score"):
    return [
        {"step": step, "name": name, "bin": int(i), "count": int(c), "total": float(t)}
        for i, c, t in zip(*histogram_of(np.asarray(values, float)), strict=True)
    ]


def send(producer, step, values, **more):
    producer.send(
        step_metric=[{"step": step, "name": "num_tokens", "value": float(len(values))}],
        histogram=rows(step, values, **more),
    )


def made(store, wanted, run="r"):
    return store.write(lambda cursor: of_run(cursor, run, wanted))


def test_it_is_of_the_last_step_that_all_ranks_have_sent(store, produce):
    first, second = (produce(rank=rank, world_size=2) for rank in (0, 1))
    assert made(store, {"scope": (0.5,)}) is None
    send(first, 1, [0.1, 0.2])
    assert made(store, {"scope": (0.5,)}) is None
    send(second, 1, [0.3, 0.4])
    send(first, 2, [9.0])

    found = made(store, {"scope": (0.5,)})
    assert found.step == 1
    assert 0.2 < found.values["scope"] <= 0.3  # two of four: those of the second rank


def test_what_was_superseded_does_not_count(store, produce):
    producer = produce()
    send(producer, 1, [0.1])
    send(producer, 2, [0.2])
    produce(session=2, resume_step=1)

    assert made(store, {"scope": (0.5,)}).step == 1


def test_rounding_makes_no_threshold_that_the_trainer_would_refuse(store, produce):
    send(produce(), 1, [-1e-9] * 5, name="entropy")

    assert made(store, {"forking_tokens": (0.2,)}).values == {"forking_tokens": 0.0}


def test_a_step_that_is_known_is_not_looked_at_again(store, produce):
    send(produce(), 1, [0.1])

    assert store.write(lambda cursor: of_run(cursor, "r", {"scope": (0.5,)}, known_step=1)) is None


def test_a_score_that_was_not_sent_has_no_threshold(store, produce):
    send(produce(), 1, [0.1])

    assert made(store, {"scope": (0.5,), "kl_cov": (0.1,)}).values.keys() == {"scope"}


def want(store, **params):
    wanted = ActiveIntervention(name="scope", params=params, because="b", selection="step")
    store.change_desired("r", lambda state: state.model_copy(update={"interventions": [wanted]}))


def test_the_store_keeps_them_for_who_asks_and_forgets_them(store, produce):
    producer = produce()
    send(producer, 1, [0.1, 0.2, 0.3, 0.4])
    assert store.thresholds("r") is None  # nobody asked

    want(store, q=0.25)
    until(lambda: store.thresholds("r"))
    before = store.thresholds("r")
    assert (before.step, 0.35 < before.values["scope"] <= 0.4) == (1, True)
    send(producer, 2, [1.1, 1.2, 1.3, 1.4])
    until(lambda: store.thresholds("r").step == 2)
    assert store.open_stream(producer.stream_id, producer.opening).thresholds == store.thresholds("r")
    store.change_desired("r", lambda state: state.model_copy(update={"interventions": []}))
    until(lambda: store.thresholds("r") is None)


def test_a_session_that_resumes_earlier_is_not_handed_a_superseded_one(store, produce):
    producer = produce()
    send(producer, 5, [0.1])
    want(store)
    until(lambda: store.thresholds("r"))

    resumed = produce(session=2, resume_step=3)
    assert store.open_stream(resumed.stream_id, resumed.opening).thresholds is None


def test_no_thread_is_left_when_the_store_is_closed(store, produce):
    names = {thread.name for thread in threading.enumerate()}
    assert "entrostat-thresholds" in names

    store.close()
    assert "entrostat-thresholds" not in {thread.name for thread in threading.enumerate() if thread.is_alive()}
