"""Which run a stream belongs to, and what a resumed session supersedes."""

from datetime import timedelta

import pytest


def steps(ask, run="r"):
    return ask(f"select step, value from step_metric where run = '{run}' and name = 'entropy_mean' order by step")


def test_opening_again_changes_nothing(store, produce, ask):
    first = produce()
    again = store.open_stream(first.stream_id, first.opening)

    assert again.run_id == "r"
    assert ask("select count(*) from stream") == [(1,)]


def test_another_rank_and_another_producer_join_the_run(produce):
    assert [produce(rank=k, world_size=2).run for k in (0, 1)] == ["r", "r"]
    assert produce(session=2, producer="rollout").run == "r"


def test_a_run_that_a_rollout_engine_opened_is_the_trainers_once_that_is_there(produce, ask):
    about = "select trainer, config ->> 'lr' from run"
    produce(session=2, producer="rollout", trainer="vllm", config={}, tags={"engine": "a"})
    assert ask(about) == [("vllm", None)]

    produce(trainer="trl.GRPOTrainer", config={"lr": 0.1}, tags={"who": "b"})
    produce(session=2, rank=1, producer="rollout", trainer="vllm", config={})

    assert ask(about) == [("trl.GRPOTrainer", "0.1")]
    assert ask("select tags ->> 'engine', tags ->> 'who' from run") == [("a", "b")]


def test_a_new_session_of_the_same_name_gets_a_run_of_its_own_for_all_its_ranks(produce):
    produce()

    assert [produce(session=2, rank=k, world_size=2).run for k in (0, 1)] == ["r-2", "r-2"]
    assert produce(session=3).run == "r-3"


def test_a_long_name_stays_a_valid_name(produce):
    produce("x" * 128)

    assert produce("x" * 128, session=2).run == "x" * 126 + "-2"


def test_a_resumed_session_supersedes_what_came_after_the_checkpoint(produce, ask):
    first = produce()
    for step in (1, 2, 3, 4):
        first.metric(step, 1.0)
    second = produce(session=2, resume_step=2)
    second.metric(3, 2.0)

    assert second.run == "r"
    assert steps(ask) == [(1, 1.0), (2, 1.0), (3, 2.0)]


def test_batches_of_a_superseded_session_that_arrive_late_stay_hidden(produce, ask):
    first = produce()
    first.metric(1, 1.0)
    produce(session=2, resume_step=1).metric(2, 2.0)
    first.metric(2, 1.0)
    first.metric(3, 1.0)

    assert steps(ask) == [(1, 1.0), (2, 2.0)]


def test_fewer_ranks_may_come_back(produce, ask):
    for rank in (0, 1):
        first = produce(rank=rank, world_size=2)
        first.send(step_metric=[{"step": s, "name": "entropy_mean", "merge": "mean", "state": [1, 4]} for s in (1, 2)])
    second = produce(session=2, resume_step=1)
    second.send(step_metric=[{"step": 2, "name": "entropy_mean", "merge": "mean", "state": [1, 8]}])

    assert ask("select step, value, num_parts, complete from step_metric where name = 'entropy_mean' order by 1") == [
        (1, 4.0, 2, True),
        (2, 8.0, 1, True),
    ]


def test_a_spool_pushed_after_the_resume_becomes_the_earlier_part_of_the_run(produce, ask):
    produce(session=2, resume_step=2).metric(3, 2.0)
    early = produce(session=1)
    for step in (1, 2, 3):
        early.metric(step, 1.0)

    assert early.run == "r"
    assert steps(ask) == [(1, 1.0), (2, 1.0), (3, 2.0)]


@pytest.mark.parametrize("resumes", [(4, 2), (2, 4)])
def test_a_run_resumed_twice_shows_each_step_once(produce, ask, resumes):
    first = produce()
    for step in range(1, 6):
        first.metric(step, 1.0)
    for session, resume in enumerate(resumes, start=2):
        one = produce(session=session, resume_step=resume)
        for step in range(resume + 1, 7):
            one.metric(step, float(session))

    found = steps(ask)
    assert [step for step, _ in found] == [1, 2, 3, 4, 5, 6]
    assert found[-1] == (6, 3.0)


def test_nothing_is_deleted_by_a_resume(store, produce):
    first = produce()
    first.metric(1, 1.0)
    first.metric(2, 1.0)
    produce(session=2, resume_step=1)

    assert store.write(lambda cursor: cursor.execute("select count(*) from raw.step_part").fetchall()) == [(2,)]


def test_rollouts_are_not_superseded_by_the_trainer(produce, ask):
    produce(producer="rollout").metric(5, 1.0, "trainer/queue")
    produce(session=2)
    produce(session=3, run="r", resume_step=1)

    assert ask("select step from step_metric where name = 'trainer/queue'") == [(5,)]


def test_clocks_without_a_zone_are_utc(produce, ask):
    naive = produce().opening.started.replace(tzinfo=None) + timedelta(hours=1)
    produce("s", started=naive)

    assert ask("select started from stream where run = 's'") == [(naive,)]
