"""Once, durably, in shared commits; refused in time where there is no room."""

import threading

import pytest

from entrostat.storage.errors import Busy, StorageError
from entrostat.storage.schema import ROW_GROUP_ROWS
from entrostat.storage.store import Store
from entrostat.storage.writer import well_filled
from entrostat.wire.errors import Conflict, NotFound
from entrostat.wire.messages import ActiveIntervention, DesiredState


@pytest.fixture
def slow_store(tmp_path):
    with Store(f"duckdb://{tmp_path / 'slow.duckdb'}", linger_s=0.3) as opened:
        yield opened


def row(step, value=1.0):
    return {"step": step, "name": "entropy_mean", "value": value}


def test_a_batch_sent_twice_is_held_once(produce, ask):
    one = produce()

    assert [one.send(0, step_metric=[row(1)]), one.send(0, step_metric=[row(1)])] == [False, True]
    assert ask("select num_parts from step_metric") == [(1,)]
    assert ask("select count(*) from batch") == [(1,)]


def test_the_same_batch_twice_in_one_commit_is_held_once(produce, slow_store):
    one = produce(in_store=slow_store)
    first, second = one.add(0, step_metric=[row(1)]), one.add(0, step_metric=[row(1)])

    assert [first.result(10), second.result(10)] == [False, True]


def test_batches_of_many_streams_share_a_commit(produce, slow_store):
    commits = []
    slow_store.on_commit(commits.append)
    futures = [produce(f"run{k}", in_store=slow_store).add(0, step_metric=[row(1)]) for k in range(2)]
    producers = [produce(f"other{k}", in_store=slow_store) for k in range(5)]
    futures += [p.add(0, step_metric=[row(1)]) for p in producers]

    assert not any(f.result(10) for f in futures)
    assert commits[-1].num_batches == 5


def test_late_steps_and_unordered_batches_are_added_up_like_any_other(produce, ask):
    one = produce()
    for seq, step in ((2, 3), (0, 1), (1, 2), (3, 1)):
        one.send(
            seq, step_metric=[{"step": step, "name": "reward_mean", "merge": "mean", "state": [1, step * 10 + seq]}]
        )

    assert ask("select step, value, num_parts from step_metric order by step") == [
        (1, 11.5, 2),
        (2, 21.0, 1),
        (3, 32.0, 1),
    ]


def test_a_full_queue_refuses_and_takes_again_later(tmp_path, produce):
    with Store(f"duckdb://{tmp_path / 'small.duckdb'}", linger_s=0.5, max_queue_bytes=1) as small:
        one = produce(in_store=small)
        first = one.add(0, step_metric=[row(1)])
        with pytest.raises(Busy, match="again"):
            one.add(1, step_metric=[row(2)])
        first.result(10)

        assert one.send(1, step_metric=[row(2)]) is False
        assert small.queue_bytes == 0


def test_closing_writes_everything_that_was_accepted(tmp_path, produce):
    url = f"duckdb://{tmp_path / 'closing.duckdb'}"
    store = Store(url, linger_s=5.0)
    one = produce(in_store=store)
    futures = [one.add(seq, step_metric=[row(seq)]) for seq in range(20)]
    store.close()

    assert [f.result(0) for f in futures] == [False] * 20
    with Store(url) as again:
        assert (
            again.query("select count(*) as n from step_metric where name = 'entropy_mean'", 1).table["n"][0].as_py()
            == 20
        )
    with pytest.raises(Busy, match="again in a moment"):
        one.add(20, step_metric=[row(1)])


def test_readers_go_on_while_batches_come_in(store, produce):
    one, counts, stop = produce(), [], threading.Event()

    def read():
        while not stop.is_set():
            counts.append(store.query("select count(*) as n from step_metric", 1).table["n"][0].as_py())

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(30):
        one.send(step_metric=[{"step": step, "name": "x", "value": 1.0}, {"step": step, "name": "y", "value": 1.0}])
    stop.set()
    reader.join()

    assert counts == sorted(counts)
    assert all(n % 2 == 0 for n in counts)


def test_a_stream_that_was_never_opened_is_not_found(store):
    with pytest.raises(NotFound, match="PUT"):
        store.add_batch("f" * 32, 0, {}, 0)


def test_an_empty_batch_is_acknowledged(produce, ask):
    assert produce().send(0) is False
    assert ask("select num_rows, first_step from batch") == [(0, None)]


def test_a_second_process_is_told_who_holds_the_file(tmp_path, store):
    import subprocess
    import sys

    code = f"from entrostat.storage.store import Store; Store('duckdb://{tmp_path / 'test.duckdb'}')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "another process holds" in done.stderr


def test_a_file_of_a_newer_version_is_refused(tmp_path):
    url = f"duckdb://{tmp_path / 'new.duckdb'}"
    with Store(url) as store:
        store.write(lambda cursor: cursor.execute("update raw.meta set schema_version = 99"))

    with pytest.raises(StorageError, match="99"):
        Store(url)


def test_other_kinds_of_store_are_refused_by_name():
    with pytest.raises(StorageError, match="duckdb:///"):
        Store("postgres://somewhere")


def test_a_run_can_be_tagged_and_deleted(store, produce, ask):
    produce("keep").metric(1, 1.0)
    gone = produce("gone")
    gone.metric(1, 1.0)
    store.update_run("gone", {"model": "small"}, "a note")
    assert store.run("gone")["tags"] == {"model": "small"}
    assert [run["run"] for run in store.runs(search="SMALL")] == ["gone"]
    store.delete_run("gone")

    assert ask("select distinct run from step_metric") == [("keep",)]
    assert [run["run"] for run in store.runs()] == ["keep"]
    with pytest.raises(NotFound):
        gone.metric(2, 1.0)


def test_desired_state_grows_by_versions_and_survives(tmp_path, produce):
    url = f"duckdb://{tmp_path / 'desired.duckdb'}"
    state = DesiredState(interventions=[ActiveIntervention(name="scope", params={"q": 0.05}, because="a test")])
    with Store(url) as store:
        produce(in_store=store)
        assert store.change_desired("r", lambda _: state, expected_version=0).version == 1
        with pytest.raises(Conflict, match="version 1"):
            store.change_desired("r", lambda _: state, expected_version=0)
        assert store.change_desired("r", lambda held: held).version == 1  # nothing new, no new version

    with Store(url) as again:
        assert again.desired("r").interventions == state.interventions
        assert again.desired("r").version == 1


def test_floats_of_tokens_are_rounded_and_weights_are_not(tmp_path, produce):
    token = {"step": 1, "seq": 0, "pos": 0, "token_id": 5, "logp": -0.123456, "entropy": 1.234567,
             "top_logps": [-0.123456, -2.987654], "reason": "uniform", "prob": 1.5e-6}  # fmt: skip
    for decimals, logp in ((4, -0.1235), (None, -0.123456)):
        with Store(f"duckdb://{tmp_path / f'{decimals}.duckdb'}", decimals=decimals) as store:
            produce(in_store=store).send(token=[token])
            (row,) = store.query("select logp, top2_logp, prob, scope from token", 1).table.to_pylist()

            assert row["logp"] == pytest.approx(logp, abs=1e-7)
            assert row["top2_logp"] == pytest.approx(-2.9877 if decimals else -2.987654, abs=1e-6)
            assert row["prob"] == pytest.approx(1.5e-6)
            assert row["scope"] is None


def test_what_was_on_in_a_deleted_run_is_not_on_in_the_one_that_is_begun_anew(store, produce, monkeypatch):
    produce("r").metric(1, 0.5)
    remember = store._remember
    monkeypatch.setattr(store, "_remember", lambda *_: None)
    store.change_desired("r", lambda held: held.model_copy(update={"is_armed": False}))
    store.delete_run("r")
    produce("r", session=9).metric(1, 0.5)
    remember("r")  # on another thread, which was slower than the delete

    assert store.desired("r").version == 0


G = ROW_GROUP_ROWS


@pytest.mark.parametrize(
    ("num_rows", "taken"),
    [
        ([], 1),
        ([0, 0, 0], 3),
        ([100, 200], 2),
        ([G // 2, G // 2, G // 2], 2),  # one group and a half would take the room of two and a half
        ([G // 2] * 4, 4),
        ([G + 5], 1),  # a batch is whole
        ([G + 5, 7], 1),
        ([10, G], 1),  # 10 now, the group by itself next
        ([G, G - 100, 5 * G], 3),
        ([G, int(0.8 * G)], 2),
        ([G // 3] * 20, 20),  # many groups: of the last little is lost
        ([4 * G + 9, 50], 2),
    ],
)
def test_a_commit_of_several_batches_ends_with_a_row_group(num_rows, taken):
    assert well_filled(num_rows) == taken


def test_batches_that_wait_for_the_next_commit_come_in_it(store, produce):
    commits, began, hold = [], threading.Event(), threading.Event()
    store.on_commit(commits.append)
    row_of = {"step": 1, "token_id": 1, "logp": -1.0, "entropy": 1.0, "reason": "all", "prob": 1.0}
    streams = [produce("r"), produce("r", rank=1, world_size=2), produce("s")]
    held = threading.Thread(target=lambda: store._writer.do(lambda _: (began.set(), hold.wait(30))))
    held.start()
    began.wait(30)
    futures = [
        stream.add(token=[row_of | {"seq": k, "pos": pos} for pos in range(G // 2)]) for k, stream in enumerate(streams)
    ]
    hold.set()
    held.join()

    assert [future.result(60) for future in futures] == [False] * 3
    assert [commit.num_batches for commit in commits] == [2, 1]
    with store._database.reading() as cursor:
        assert cursor.execute("select count(*) from raw.token_row").fetchall() == [(3 * (G // 2),)]
