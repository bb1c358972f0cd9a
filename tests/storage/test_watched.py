"""The runs that are watched from outside: who they are, when they were last heard, what they lost."""

from datetime import UTC, datetime, timedelta

import pytest

from entrostat.storage import runs
from entrostat.storage.store import WATCHED_S
from entrostat.storage.streams import utc_now

SIGNALS = ("entropy_mean",)


def dropped(**detail):
    text = (
        "{" + ", ".join(f'"{k}": {v if isinstance(v, int) else chr(34) + v + chr(34)}' for k, v in detail.items()) + "}"
    )
    return {"time": "2026-01-01T00:00:00", "kind": "dropped", "message": "Dropped.", "detail": text}


def event(kind):
    return {"time": "2026-01-01T00:00:00", "kind": kind, "message": ""}


@pytest.fixture
def watched(store):
    def ask(limit=20):
        return {one.run: one for one in store.watched_runs(SIGNALS, limit)}

    return ask


@pytest.fixture
def later(monkeypatch):
    """``later(seconds)``: the clock that tells whether a run is live is so far ahead."""

    def move(seconds):
        monkeypatch.setattr(runs, "utc_now", lambda: utc_now() + timedelta(seconds=seconds))

    return move


def test_a_live_run_is_shown_with_its_newest_values(produce, watched):
    producer = produce("r")
    producer.metric(1, 0.5)
    producer.metric(2, 0.25)

    one = watched()["r"]
    assert (one.is_live, one.last_step, one.values) == (True, 2, {"entropy_mean": 0.25})
    assert abs((datetime.now(UTC) - one.last_seen).total_seconds()) < 60


def test_a_run_that_fell_silent_is_still_watched_and_one_that_ended_is_not(produce, watched, later):
    produce("silent").metric(1, 0.5)
    ended = produce("ended")
    ended.metric(1, 0.5)
    ended.send(event=[event("run_ended")])
    later(runs.LIVE_S + 1)

    assert {name: one.is_live for name, one in watched().items()} == {"silent": False}


def test_a_run_that_was_silent_for_long_is_forgotten(produce, watched, monkeypatch):
    produce("old").metric(1, 0.5)
    monkeypatch.setattr("entrostat.storage.runs.LIVE_S", -1.0)
    assert set(watched()) == {"old"}
    monkeypatch.setattr("entrostat.storage.store.WATCHED_S", -1.0)

    assert watched() == {}
    assert WATCHED_S > 3600


def test_what_probes_dropped_is_added_up_by_reason(produce, watched):
    first, second = produce("r"), produce("r", rank=1)
    first.send(event=[dropped(reason="queue_full", items=2, steps=2, token_rows=30, bytes=9)])
    first.send(event=[dropped(reason="queue_full", items=1, steps=1, token_rows=5, bytes=9)])
    second.send(event=[dropped(reason="spool_full", token_rows=7), event("warning"), event("warning")])
    produce("other").metric(1, 0.5)

    lost = watched()["r"].losses
    assert lost.num_steps == {"queue_full": 3, "spool_full": 0}
    assert lost.num_token_rows == {"queue_full": 35, "spool_full": 7}
    assert lost.num_warnings == 2
    assert set(watched()["other"].losses.num_steps.values()) == {0}


def test_a_reason_that_nobody_knows_is_one_label_and_a_broken_detail_is_none(produce, watched, store):
    producer = produce("r")
    producer.send(event=[dropped(reason=f"made up {k}", steps=1) for k in range(5)])
    producer.send(event=[dropped(reason="queue_full", steps="many"), event("dropped") | {"detail": "{}"}])
    # Of a producer's it is refused now; an older file may have one.
    store.write(lambda cursor: cursor.execute("update raw.event_row set detail = '[no json' where detail = '{}'"))

    assert watched()["r"].losses.num_steps == {"queue_full": 0, "spool_full": 0, "other": 5}


def test_no_more_runs_are_shown_than_asked_for(produce, watched):
    for number in range(4):
        produce(f"r{number}").metric(1, 0.5)

    assert len(watched(limit=3)) == 3
