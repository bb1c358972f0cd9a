"""What is old goes, oldest first, and stays on record; what is in use stays, and batches go on coming in."""

import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.full_batch import full_batch, many_tokens

from entrostat.storage import retention
from entrostat.storage.retention import Policy, Retention, first_piece
from entrostat.storage.streams import utc_now

ENDED = {"time": "2026-01-01T00:00:00", "kind": "run_ended", "message": ""}
DAY = timedelta(days=1)


@pytest.fixture
def keep(store):
    """``keep(policy, days=3)`` applies a policy as it would be so many days from now."""

    def apply(policy, days=0.0):
        clock = Retention(
            store._database,
            store._writer,
            store._delete_old_run,
            store._touch,
            lambda: utc_now() + timedelta(days=days),
        )
        clock.apply(policy)

    return apply


@pytest.fixture
def recorded(produce):
    """``recorded("name", steps)``: a run with rows in every table that has ended."""

    def make(name, steps=range(3), ended=True, **more):
        one = produce(name, session=abs(hash(name)) % 10**9, **more)
        for step in steps:
            one.send(**full_batch(step))
        if ended:
            one.send(event=[ENDED])
        return one

    return make


def rows_of(store, run):
    return {
        view: store.query(f"select count(*) as n from {view} where run = '{run}'", 1).table["n"][0].as_py()
        for view in ("token", "sequence", "step_metric", "batch")
    }


def test_nothing_is_removed_where_everything_is_kept(store, recorded, keep):
    recorded("a")
    before = rows_of(store, "a")
    keep(Policy(), days=1000)

    assert rows_of(store, "a") == before
    assert Policy().keeps_everything
    assert store.run("a")["removed"] == []
    assert store.run("a")["tokens_removed"] is None


@pytest.mark.parametrize("name", ["keep_token_days", "keep_run_days", "max_bytes"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_a_limit_that_would_remove_everything_by_mistake_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*: give 0"):
        Policy(**{name: value})


def test_token_and_sequence_rows_go_by_age_and_the_rest_stays(store, recorded, keep):
    recorded("a")
    keep(Policy(keep_token_days=7), days=6.9)
    assert rows_of(store, "a")["token"] == 9
    before = rows_of(store, "a")
    keep(Policy(keep_token_days=7), days=7.1)

    assert rows_of(store, "a") == before | {"token": 0, "sequence": 0}
    assert rows_of(store, "a")["step_metric"] > 0


def test_what_was_removed_is_on_record_for_persons_and_programs(store, recorded, keep, ask):
    recorded("a")
    assert store.runs()[0]["tokens_removed"] is None  # and is kept for the next list
    keep(Policy(keep_token_days=7), days=8)

    shown = [(r["what"], r["num_rows"], r["from_step"], r["to_step"], r["reason"]) for r in store.run("a")["removed"]]
    reason = "token rows are kept 7 days"
    assert sorted(shown) == [("sequence", 3, 0, 2, reason), ("token", 9, 0, 2, reason)]
    assert store.runs()[0]["tokens_removed"].startswith(utc_now().date().isoformat())
    assert ("a", "token", 9, 0, 2, reason) in ask("select run, what, num_rows, from_step, to_step, reason from removal")
    (event,) = [e for e in store.events("a") if e["kind"] == "rows_removed"]
    assert event["message"] == f"removed 12 token and sequence rows: {reason}"


def test_it_is_done_once(store, recorded, keep):
    recorded("a")
    keep(Policy(keep_token_days=7), days=8)
    keep(Policy(keep_token_days=7), days=9)

    assert len([e for e in store.events("a") if e["kind"] == "rows_removed"]) == 1
    assert sum(r["num_rows"] for r in store.run("a")["removed"]) == 12


def test_whole_runs_go_by_age_and_leave_their_name(store, recorded, keep, ask):
    recorded("old")
    keep(Policy(keep_run_days=30), days=31)

    assert store.runs() == []
    reason = "runs are kept 30 days"
    found = ask("select run, what, num_rows, from_step, to_step, reason from removal")
    assert found == [("old", "run", 34, 0, 2, reason)]
    assert store.check().is_sound


def test_a_run_in_use_is_never_touched(store, recorded, keep):
    recorded("live", ended=False)
    before = rows_of(store, "live")
    keep(Policy(keep_token_days=0.001, keep_run_days=0.002, max_bytes=1), days=0.9)
    assert rows_of(store, "live") == before

    keep(Policy(keep_token_days=0.001), days=1.1)  # silent for more than a day
    assert rows_of(store, "live")["token"] == 0


def test_a_run_that_goes_on_between_two_pieces_keeps_the_rest(store, recorded, keep, monkeypatch):
    one = recorded("a")
    monkeypatch.setattr(retention, "PIECE_ROWS", (3, 3))
    plain, num_pieces = retention._removing, []

    def and_then_it_goes_on(*given):
        num_pieces.append(given)
        if len(num_pieces) == 2:
            one.send(**full_batch(9))
        return plain(*given)

    monkeypatch.setattr(retention, "_removing", and_then_it_goes_on)
    keep(Policy(keep_run_days=7), days=8)

    assert rows_of(store, "a")["token"] == 6 + 3
    assert store.check().is_sound
    assert [run["run"] for run in store.runs()] == ["a"]


def test_rows_that_come_after_are_kept_and_counted(store, recorded, keep):
    one = recorded("a")
    keep(Policy(keep_token_days=7), days=8)
    one.send(**full_batch(9))

    assert rows_of(store, "a")["token"] == 3
    assert store.check().is_sound


def test_beyond_its_size_the_oldest_runs_lose_their_tokens_first_then_go(store, recorded, keep, monkeypatch):
    for name in ("first", "second", "third"):
        recorded(name)
    sizes = iter([100, 90, 80, 70, 60, 50])
    monkeypatch.setattr(Retention, "used_bytes", lambda _: next(sizes))
    keep(Policy(max_bytes=65))  # 100: first's tokens; 90: second's; 80: third's; 70: the run first; 60: enough

    assert [run["run"] for run in store.runs()] == ["third", "second"]
    assert rows_of(store, "second")["token"] == rows_of(store, "third")["token"] == 0
    assert rows_of(store, "second")["step_metric"] > 0


def test_removed_rows_are_free_blocks_of_the_file(store, produce, keep):
    one = produce("big")
    for seq in range(3):
        store.add_batch(one.stream_id, seq, {"token": many_tokens(seq, 120_000)}, 1).result(60)
    one.send(3, event=[ENDED])
    store._writer.hold_still(lambda cursor: cursor.execute("checkpoint"))
    before, block = store.retention.used_bytes(), 2**18
    keep(Policy(max_bytes=before - 4 * block))

    assert store.retention.used_bytes() <= before - 4 * block
    assert rows_of(store, "big")["token"] == 0
    assert [run["run"] for run in store.runs()] == ["big"]


def test_batches_get_in_between_the_pieces(store, produce, recorded, keep, monkeypatch):
    recorded("old", steps=range(12))
    monkeypatch.setattr(retention, "PIECE_ROWS", (3, 3))
    other, stop, acked = produce("other", session=5), threading.Event(), []

    def send():
        step = 0
        while not stop.is_set():
            acked.append(other.send(**full_batch(step)))
            step += 1

    sender = threading.Thread(target=send)
    sender.start()
    keep(Policy(keep_token_days=7), days=8 - 1e-6)
    stop.set()
    sender.join()

    assert rows_of(store, "old")["token"] == 0
    assert rows_of(store, "other")["batch"] == len(acked) > 0
    assert store.check().is_sound


def test_asked_to_stop_it_ends_after_a_piece_and_goes_on_later(store, recorded, keep, monkeypatch):
    recorded("a")
    monkeypatch.setattr(retention, "PIECE_ROWS", (3, 3))
    one = Retention(store._database, store._writer, store._delete_old_run, store._touch, lambda: utc_now() + 8 * DAY)
    plain = retention._removing

    def stopping(*given):
        one.stop()
        return plain(*given)

    monkeypatch.setattr(retention, "_removing", stopping)
    one.apply(Policy(keep_run_days=7))
    assert rows_of(store, "a")["token"] == 6
    assert store.check().is_sound

    monkeypatch.undo()
    keep(Policy(keep_run_days=7), days=8)
    assert store.runs() == []


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(1, 9)), unique_by=lambda c: c[:2]))
def test_pieces_cover_every_step_once_and_only_a_single_step_is_larger_than_asked_for(counted):
    left, covered = sorted(counted), []
    while left:
        stream, (first, last), taken = first_piece(left, 10)
        piece, left = left[:taken], left[taken:]
        assert {one[0] for one in piece} == {stream}
        assert (piece[0][1], piece[-1][1]) == (first, last)
        assert len(piece) == 1 or sum(one[2] for one in piece) <= 10
        covered += piece

    assert covered == sorted(counted)


def test_a_piece_is_of_one_stream_and_holds_at_least_a_step():
    left, found = [(1, 0, 4), (1, 1, 6), (1, 2, 1), (1, 5, 50), (1, 6, 1), (2, 0, 1)], []
    while left:
        stream, steps, taken = first_piece(left, 10)
        found.append((stream, steps))
        left = left[taken:]

    assert found == [(1, (0, 1)), (1, (2, 2)), (1, (5, 5)), (1, (6, 6)), (2, (0, 0))]


def test_pieces_get_smaller_while_they_take_long_and_larger_while_they_do_not(store, monkeypatch):
    one, sizes = store.retention, []
    for limit_s in (-1.0, -1.0, 1e9, 1e9, 1e9):  # too long, however quick; then never
        monkeypatch.setattr(retention, "PIECE_S", limit_s)
        monkeypatch.setattr(retention, "PIECE_ROWS", (100, 300))
        one._in_time(lambda: 0)
        sizes.append(one._piece_rows)

    assert sizes == [300, 150, 225, 300, 300]
