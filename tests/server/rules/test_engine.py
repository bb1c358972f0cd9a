"""The engine over a store: each complete step once, in order, whatever the order in which it came."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE_S

from entrostat.server.rules.engine import PATIENCE_STEPS, Engine, expected_to_act, ready_steps
from entrostat.storage.store import Store
from entrostat.wire import intent
from entrostat.wire.errors import Conflict
from entrostat.wire.messages import ActiveIntervention, StreamOpen

ACT = {"mode": "act", "allow": ["scope", "kl_cov"]}
GUARD = {
    "name": "guard",
    "when": {"signal": "entropy_mean", "below": 0.2, "for_steps": 3},
    "do": {"intervention": "scope", "params": {"lam": 0.1}},
    "until": {"signal": "entropy_mean", "above": 0.4, "for_steps": 2},
    "cooldown_steps": 5,
    "mode": "act",
}
FALL = [0.5, 0.5, 0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.5]
"""Fires at step 4, ends at step 7."""


class Trainer:
    """Ranks that send one signal over the store's own door."""

    def __init__(self, store, run="r", ranks=1, session=1, permissions=ACT, **opening):
        self.store, self.ids, self.seqs = store, [], [0] * ranks
        for rank in range(ranks):
            stream = f"{session * 100 + rank:032x}"
            self.run = store.open_stream(
                stream,
                StreamOpen(
                    run_id=run, session_id=f"{session:032x}", rank=rank, world_size=ranks,
                    started=f"2026-01-01T00:00:{session:02d}Z", permissions=permissions, settings={"baseline_steps": 2},
                    **opening,
                ),
            ).run_id  # fmt: skip
            self.ids.append(stream)

    def send(self, step, value, rank=0, name="entropy_mean"):
        from entrostat.wire.codec import decode_json

        body = b'{"step_metric": [{"step": %d, "name": "%s", "value": %r}]}' % (step, name.encode(), float(value))
        self.store.add_batch(self.ids[rank], self.seqs[rank], decode_json(body), len(body)).result(10)
        self.seqs[rank] += 1

    def send_all(self, values, first=0):
        for step, value in enumerate(values, first):
            for rank in range(len(self.ids)):
                self.send(step, value, rank)


@pytest.fixture
def store(tmp_path):
    with Store(f"duckdb://{tmp_path / 'test.duckdb'}", linger_s=0.0) as opened:
        yield opened


def put(store, *rules):
    store.rules.put({rule["name"]: rule for rule in rules})


def told(store, run="r"):
    return [(e["step"], e["kind"]) for e in store.events(run)]


def on(store, run="r"):
    return {i.name: i.by for i in store.desired(run).interventions}


def test_a_rule_switches_on_and_off_with_an_event_each(store):
    put(store, GUARD)
    trainer, engine = Trainer(store), Engine(store)
    trainer.send_all(FALL[:5])
    engine.advance("r")
    assert on(store) == {"scope": "rule:guard"}
    trainer.send_all(FALL[5:], first=5)
    engine.advance("r")

    assert on(store) == {}
    assert told(store) == [(4, "rule_fired"), (7, "rule_ended")]
    assert store.events("r")[0]["detail"]["values"] == {"entropy_mean": 0.1}


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_cut_anywhere_and_restarted_anywhere_it_does_the_same_once(tmp_path_factory, data):
    cuts = data.draw(st.sets(st.integers(1, len(FALL) - 1)))
    path = tmp_path_factory.mktemp("rules") / "test.duckdb"
    with Store(f"duckdb://{path}", linger_s=0.0) as store:
        put(store, GUARD)
        trainer = Trainer(store)
        for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), len(FALL)], strict=True):
            trainer.send_all(FALL[first:last], first)
            engine = Engine(store)  # with nothing in memory, as after a restart
            engine.advance("r")
            engine.advance("r")

        assert told(store) == [(4, "rule_fired"), (7, "rule_ended")]
        assert store.desired("r").interventions == []


def test_a_step_waits_for_its_last_rank_and_those_behind_it_wait_too(store):
    put(store, GUARD)
    trainer, engine = Trainer(store, ranks=2), Engine(store)
    for step, value in enumerate(FALL[:7]):
        trainer.send(step, value, rank=0)
        if step != 2:
            trainer.send(step, value, rank=1)
    engine.advance("r")
    assert told(store) == []
    trainer.send(2, FALL[2], rank=1)
    engine.advance("r")

    assert told(store) == [(4, "rule_fired")]


def test_a_rank_that_never_comes_holds_the_rules_up_only_so_long(store):
    put(store, GUARD)
    trainer, engine = Trainer(store, ranks=2), Engine(store)
    for step in range(PATIENCE_STEPS + 2):
        trainer.send(step, 0.1, rank=0)
        if step != 1:
            trainer.send(step, 0.1, rank=1)
    engine.advance("r")

    assert told(store) == [(4, "rule_fired")]  # 2, 3, 4: the incomplete step 1 counts as unknown


def test_ready_is_what_no_earlier_step_holds_up():
    late = [(0, True), (1, False), *[(step, True) for step in range(2, 2 + PATIENCE_STEPS)]]

    assert ready_steps(late[:-1]) == [(0, True)]
    assert ready_steps(late) == late
    assert ready_steps([]) == []


def test_many_steps_at_once_are_many_transactions_with_one_outcome(store):
    put(store, GUARD)
    Trainer(store).send_all([0.5] * 70 + [0.1] * 20 + [0.5] * 10)
    Engine(store).advance("r")

    assert told(store) == [(72, "rule_fired"), (91, "rule_ended")]


def test_a_rule_begins_with_the_steps_that_come_after_it(store):
    trainer, engine = Trainer(store), Engine(store)
    trainer.send_all([0.1] * 10)
    put(store, GUARD)
    engine.advance("r")
    trainer.send_all([0.1] * 2, first=10)
    engine.advance("r")
    assert told(store) == []
    trainer.send(12, 0.1)
    engine.advance("r")

    assert told(store) == [(12, "rule_fired")]


def test_its_windows_reach_back_to_before_it_came(store):
    trainer, engine = Trainer(store), Engine(store)
    trainer.send_all([0.1] * 10)
    put(store, GUARD | {"when": {"signal": "entropy_mean", "below": 0.2, "window": 8}})
    trainer.send(10, 0.1)
    engine.advance("r")

    assert told(store) == [(10, "rule_fired")]


def test_a_changed_rule_lets_go_and_begins_anew(store):
    put(store, GUARD)
    trainer, engine = Trainer(store), Engine(store)
    trainer.send_all(FALL[:5])
    engine.advance("r")
    put(store, GUARD | {"when": {"signal": "entropy_mean", "below": 0.05}})
    engine.advance("r")

    assert on(store) == {}
    assert told(store) == [(4, "rule_fired"), (4, "rule_ended")]
    engine.advance("r")
    assert len(told(store)) == 2


def test_a_rule_put_again_as_it_was_changes_nothing(store):
    put(store, GUARD)
    trainer, engine = Trainer(store), Engine(store)
    trainer.send_all(FALL[:5])
    engine.advance("r")
    put(store, GUARD)
    engine.advance("r")

    assert on(store) == {"scope": "rule:guard"}


def test_a_removed_rule_lets_go(store):
    put(store, GUARD)
    trainer, engine = Trainer(store), Engine(store)
    trainer.send_all(FALL[:5])
    engine.advance("r")
    store.rules.remove("guard")
    engine.advance("r")

    assert on(store) == {}
    assert store.rules.runs() == []
    assert store.events("r")[-1]["message"] == "guard: the rule was removed, scope off"


def test_a_rule_for_other_runs_leaves_this_one_alone(store):
    put(store, GUARD | {"runs": {"tags": {"size": "7b"}}})
    Trainer(store, tags={"size": "7b"}).send_all(FALL)
    Trainer(store, run="other", session=2, tags={"size": "1b"}).send_all(FALL)
    engine = Engine(store)
    engine.advance("r")
    engine.advance("other")

    assert told(store) == [(4, "rule_fired"), (7, "rule_ended")]
    assert told(store, "other") == []


def test_steps_that_a_resumed_session_does_again_are_judged_again(store):
    put(store, GUARD)
    first, engine = Trainer(store), Engine(store)
    first.send_all(FALL)
    engine.advance("r")
    again = Trainer(store, session=2, resume_step=1)
    again.send_all([0.5, 0.5, 0.5, 0.1, 0.1, 0.1], first=2)
    engine.advance("r")

    assert told(store)[2:] == [(7, "rule_fired")]


def test_a_run_made_again_under_its_name_is_another(store):
    put(store, GUARD)
    engine = Engine(store)
    Trainer(store).send_all(FALL)
    engine.advance("r")
    store.delete_run("r")
    Trainer(store, session=2).send_all(FALL[:5])
    engine.advance("r")

    assert on(store) == {"scope": "rule:guard"}
    assert told(store) == [(4, "rule_fired")]


def test_a_person_who_is_faster_is_not_overwritten(store, monkeypatch):
    put(store, GUARD)
    trainer, engine = Trainer(store), Engine(store)
    trainer.send_all(FALL[:5])
    by_hand = ActiveIntervention(name="kl_cov", because="a try", by="person:anna")
    commit, conflicts = store.rules.commit, []

    def slowly(*arguments):
        if not conflicts:
            store.change_desired("r", lambda state: intent.switched_on(state, by_hand))
        try:
            commit(*arguments)
        except Conflict as error:
            conflicts.append(error)
            raise

    monkeypatch.setattr(store.rules, "commit", slowly)
    engine.advance("r")

    assert len(conflicts) == 1
    assert on(store) == {"kl_cov": "person:anna", "scope": "rule:guard"}
    assert told(store) == [(4, "rule_fired")]


def test_an_sql_condition_sees_the_run_and_its_step(store):
    counted = "select count(*) >= 3 from step where run = $run and step <= $step and entropy_mean < 0.2"
    put(store, GUARD | {"when": {"sql": counted}, "until": {"steps": 2}})
    trainer, engine = Trainer(store), Engine(store)
    for step, value in enumerate(FALL):
        trainer.send(step, value)
        engine.advance("r")

    assert told(store) == [(4, "rule_fired"), (8, "rule_ended")]


def test_so_many_steps_are_counted_from_when_the_trainer_can_have_heard(store):
    put(store, GUARD | {"until": {"steps": 10}})
    trainer, engine = Trainer(store), Engine(store)
    trainer.send_all([0.1] * 30)  # thirty steps in one go: the trainer is as far ahead by now
    engine.advance("r")
    held = intent.on(store.desired("r"), "scope")
    assert held is not None
    assert held.until_step == expected_to_act(-1, 29) + 10
    trainer.send_all([0.1] * (held.until_step - 29), first=30)
    engine.advance("r")

    assert on(store) == {}
    assert told(store) == [(2, "rule_fired"), (held.until_step, "rule_ended")]


def test_a_change_acts_two_batches_later():
    assert expected_to_act(9, 10) == 12
    assert expected_to_act(10, 30) == 70
    assert expected_to_act(-1, 0) == 2
    assert expected_to_act(10, 5000) == 5100


def test_sql_that_fails_is_unknown_holds_nothing_up_and_is_logged_once(store, caplog):
    wrong = {"any": [{"sql": "select no_such_column from step"}, {"step": {"from": 3}}]}
    put(store, GUARD | {"when": wrong, "until": {"steps": 50}})
    Trainer(store).send_all(FALL)
    Engine(store).advance("r")

    assert told(store) == [(3, "rule_fired")]
    assert [record.message.count("no_such_column") > 0 for record in caplog.records] == [True]


def test_a_rule_that_is_not_understood_rests_and_the_others_go_on(store, caplog):
    put(store, GUARD, {"name": "of-tomorrow", "when": {"moon": "full"}})
    Trainer(store).send_all(FALL)
    engine = Engine(store)
    engine.advance("r")
    engine.advance("r")

    assert len(caplog.records) == 1

    assert told(store) == [(4, "rule_fired"), (7, "rule_ended")]


def test_the_thread_hears_of_commits_and_of_what_was_left_off(store):
    put(store, GUARD)
    trainer = Trainer(store)
    trainer.send_all(FALL[:5])
    engine, heard = Engine(store), threading.Event()
    store.on_commit(engine.committed)
    commit = store.rules.commit

    def listening(*arguments):
        commit(*arguments)
        if len(told(store)) == 2:
            heard.set()

    store.rules.commit = listening
    engine.start()
    trainer.send_all(FALL[5:], first=5)

    assert heard.wait(PATIENCE_S)
    engine.close()
    assert told(store) == [(4, "rule_fired"), (7, "rule_ended")]


def test_trouble_with_one_run_is_not_the_end_of_the_others(store, caplog):
    put(store, GUARD)
    Trainer(store, run="good", session=2).send_all(FALL)
    Trainer(store).send_all(FALL)
    engine, done = Engine(store), threading.Event()
    advance = engine.advance

    def failing(run):
        if run == "r":
            raise RuntimeError("a defect")
        advance(run)
        done.set()

    engine.advance = failing
    engine.start()
    engine.look_at(["r", "good"])

    assert done.wait(PATIENCE_S)
    engine.close()
    assert len(told(store, "good")) == 2
