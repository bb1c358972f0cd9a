"""Thinned curves hide nothing; what is asked for in full comes in full."""

import numpy as np
import pytest

from entrostat.wire.errors import NotFound


@pytest.fixture
def curve(produce):
    values = np.sin(np.arange(1000) / 50)
    values[437] = 99.0
    one = produce()
    one.send(
        step_metric=[{"step": s, "name": "entropy_mean", "value": float(v)} for s, v in enumerate(values)]
        + [{"step": s, "name": "wall_time_s", "value": 1.7e9 + s} for s in range(1000)]
    )
    return values


def only(store, *args, **given):
    (one,) = store.series(["r"], ["entropy_mean"], *args, **given)
    return one


def test_a_spike_is_never_hidden(store, curve):
    thin = only(store, None, None, 50)

    assert len(thin["step"]) == 50
    assert thin["bucket_steps"] == 20
    assert max(thin["high"]) == 99.0
    for i, step in enumerate(thin["step"]):
        bucket = curve[step : step + 20]
        assert (thin["low"][i], thin["high"][i]) == (bucket.min(), bucket.max())
        assert thin["value"][i] == pytest.approx(bucket.mean())


def test_a_narrow_window_comes_in_full(store, curve):
    full = only(store, 430, 440, 600)

    assert full["bucket_steps"] == 1
    assert full["step"] == list(range(430, 441))
    assert full["value"] == full["low"] == full["high"] == pytest.approx(curve[430:441])
    assert full["time"] == [1.7e9 + s for s in range(430, 441)]


def test_an_unknown_signal_is_empty_and_an_unknown_run_an_error(store, curve):
    (one,) = store.series(["r"], ["nothing"], None, None, 10)
    assert one["step"] == []
    with pytest.raises(NotFound):
        store.series(["nope"], ["entropy_mean"], None, None, 10)


def test_time_is_when_the_server_got_it_where_the_trainer_does_not_say(store, produce):
    produce().metric(1, 0.5)

    assert only(store, None, None, 10)["time"][0] > 1.7e9


def test_an_estimate_carries_its_standard_error(store, produce):
    produce().send(step_metric=[{"step": 1, "name": "entropy_mean", "merge": "estimate", "state": [4, 8, 4]}])

    assert only(store, None, None, 10)["se"] == [0.5]


def test_histograms_are_thinned_by_adding_neighbours_up(store, produce):
    one = produce()
    one.send(
        histogram=[
            {"step": s, "name": "entropy", "bin": b, "count": s + b, "total": 0.0} for s in range(10) for b in (1, 5)
        ]
    )
    thin = store.histogram("r", "entropy", None, None, 5)

    assert (thin["step"], thin["bin"], thin["unit"]) == ([0, 2, 4, 6, 8], [1, 5], "nats")
    assert thin["count"][1] == [2 + 3 + 2 * 1, 2 + 3 + 2 * 5]
    with pytest.raises(NotFound, match="entropy"):
        store.histogram("r", "nothing", None, None, 5)
