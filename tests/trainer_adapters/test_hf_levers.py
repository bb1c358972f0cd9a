"""A real TRL trainer under a controller: levers, checkpoints, and what a step that was acted on leaves behind."""

import json

import pytest
from support import tiny_trl
from support.spool import spooled
from transformers import TrainerCallback

import entrostat
from entrostat.trainer_adapters import boundary
from entrostat.trainer_adapters.controller import Intent
from entrostat.trainer_adapters.session import Session
from entrostat.wire.messages import ActiveIntervention, DesiredState


def item(name, until=None, **params):
    return ActiveIntervention(name=name, params=params, because="a test", by="person:anna", until_step=until)


@pytest.fixture
def wanted(monkeypatch):
    """Step -> what is wanted from it on, in the place of a server."""
    plan = {}

    def intent(session, waited_s=0.0):
        step = session.recorder_step() + 1
        current = max((s for s in plan if s <= step), default=None)
        items = [] if current is None else plan[current]
        return Intent(DesiredState(version=step, interventions=items), waited_s=waited_s)

    monkeypatch.setattr(Session, "intent", intent)
    monkeypatch.setattr(Session, "recorder_step", lambda self: Watcher.step, raising=False)
    monkeypatch.setattr(Watcher, "step", 0)
    return plan


class Watcher(TrainerCallback):
    """The step and learning rates, as the trainer has them."""

    step = 0

    def __init__(self, trainer):
        self.trainer, self.at_update, self.after = trainer, [], []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.at_update.append(self.trainer.optimizer.param_groups[0]["lr"])

    def on_step_end(self, args, state, control, **kwargs):
        Watcher.step = state.global_step
        self.after.append(self.trainer.optimizer.param_groups[0]["lr"])


def run(tmp_path, **settings):
    trainer = tiny_trl.trainer(tmp_path / "out", **settings)
    handle = entrostat.attach(
        trainer, directory=tmp_path / "spool", url="http://127.0.0.1:9", mode="act", reference=entrostat.FrozenCopy()
    )
    watcher = Watcher(trainer)
    trainer.add_callback(watcher)
    return trainer, handle, watcher


def rows(tmp_path, table):
    return spooled(tmp_path / "spool")[0][table].to_dict("records")


def weights(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def test_the_learning_rate_is_scaled_for_the_update_and_the_scheduler_keeps_its_own(tmp_path, wanted):
    plain = tiny_trl.trainer(tmp_path / "plain", max_steps=4)
    own = Watcher(plain)
    plain.add_callback(own)
    plain.train()

    Watcher.step = 0
    wanted[2] = [item("learning_rate", factor=0.25)]
    wanted[4] = []
    trainer, _, watcher = run(tmp_path, max_steps=4)
    trainer.train()

    assert watcher.at_update == pytest.approx(
        [own.at_update[0], *(0.25 * r for r in own.at_update[1:3]), own.at_update[3]]
    )
    assert watcher.after == own.after


def test_stop_ends_the_training_in_order_with_a_checkpoint(tmp_path, wanted):
    wanted[2] = [item("stop")]
    trainer, _, _ = run(tmp_path, max_steps=5)

    trainer.train()

    assert trainer.state.global_step == 2
    assert (tmp_path / "out" / "checkpoint-2").is_dir()


def test_save_checkpoint_saves_once(tmp_path, wanted):
    wanted[2] = [item("save_checkpoint")]
    trainer, _, _ = run(tmp_path, max_steps=4)

    trainer.train()

    assert [p.name for p in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-2"]


def test_a_pause_ends_by_itself_and_training_goes_on(tmp_path, wanted, monkeypatch):
    monkeypatch.setattr(boundary, "PAUSE_POLL_S", 0.02)
    wanted[2] = [item("pause", at_most_s=0.1)]
    trainer, _, _ = run(tmp_path, max_steps=3)

    trainer.train()

    assert trainer.state.global_step == 3
    events = rows(tmp_path, "event")
    refusals = [e for e in events if e["kind"] == "intervention_refused"]
    assert len(refusals) == 1
    assert "it lasted 0.1 s" in refusals[0]["message"]


def test_every_switch_is_an_event_and_every_step_tells_what_was_done(tmp_path, wanted):
    wanted[2] = [item("scope", q=0.25, lam=0.5)]
    wanted[4] = []
    trainer, handle, _ = run(tmp_path, max_steps=4)

    trainer.train()

    events = [e for e in rows(tmp_path, "event") if e["kind"].startswith("intervention_")]
    assert [(e["kind"], e["step"]) for e in events] == [("intervention_on", 2), ("intervention_off", 4)]
    detail = json.loads(events[0]["detail"])
    assert detail["in_force"] == {"q": 0.25, "lam": 0.5}
    assert (detail["by"], detail["because"]) == ("person:anna", "a test")
    told = {r["step"] for r in rows(tmp_path, "step_metric") if r["name"] == "intervention/scope_tokens"}
    assert told == {2, 3}
    assert handle.boundary.tap.reference.kind == "frozen copy"


def test_a_method_that_raises_is_taken_down_and_the_run_goes_on(tmp_path, wanted, monkeypatch):
    from entrostat.trainer_adapters import trl_loss

    def broken(*_args, **_kwargs):
        raise ValueError("no such luck")

    monkeypatch.setattr(trl_loss, "kl_to_reference", broken)
    wanted[2] = [item("scope")]
    trainer, _, _ = run(tmp_path, max_steps=4)

    trainer.train()

    assert trainer.state.global_step == 4
    refused = [e for e in rows(tmp_path, "event") if e["kind"] == "intervention_refused"]
    assert [e["step"] for e in refused] == [3]
    assert "no such luck" in refused[0]["message"]


def test_a_resumed_run_has_the_same_in_force_before_the_server_speaks(tmp_path, wanted, monkeypatch):
    wanted[2] = [item("clip_cov", r=0.05)]
    trainer, _, _ = run(tmp_path, max_steps=3, save_strategy="steps", save_steps=3)
    trainer.train()

    monkeypatch.setattr(Session, "intent", lambda self, waited_s=0.0: Intent(DesiredState(), has_heard=False))
    again, handle, _ = run(tmp_path, max_steps=5)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))

    assert handle.boundary.tap.board.active == {"clip_cov": {"r": 0.05}}
    assert handle.boundary.tap.board.states["clip_cov"] == 4  # batches: two before the checkpoint, two after


def test_dlc_is_switched_on_and_off_while_training_runs(tmp_path, wanted):
    wanted[2] = [item("dlc", mu=0.5)]
    wanted[4] = []
    trainer, handle, _ = run(tmp_path, max_steps=4)

    trainer.train()

    dlc = handle.boundary.levers.dlc
    assert dlc.mu == 0.0
    assert dlc.memory_loss is not None
    handle.detach()
    assert "_generate_single_turn" not in trainer.__dict__


def test_in_mode_act_with_nothing_wanted_training_is_the_same_to_the_bit(tmp_path, wanted):
    plain = tiny_trl.trainer(tmp_path / "plain", max_steps=3)
    plain.train()
    Watcher.step = 0
    trainer, _, _ = run(tmp_path, max_steps=3)
    trainer.train()

    one, other = weights(plain), weights(trainer)
    assert all((one[name] == other[name]).all() for name in one)


def test_detached_in_the_middle_nothing_acts_any_more(tmp_path, wanted):
    wanted[1] = [item("entropy_bonus", c=1.0)]
    trainer, handle, _ = run(tmp_path, max_steps=2)
    trainer.train()

    handle.detach()

    assert handle.boundary.tap.board.transforms == ()
