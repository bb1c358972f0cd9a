"""Which trainers are attached to and which are refused; what may be done to a run of supervised training, and is."""

import json

import pytest
import torch
from datasets import Dataset
from support import tiny_sft, tiny_trl
from support.spool import spooled
from transformers import (
    Seq2SeqTrainer,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import DPOConfig, DPOTrainer, SFTTrainer

import entrostat
from entrostat.trainer_adapters import boundary
from entrostat.trainer_adapters.controller import Intent
from entrostat.trainer_adapters.session import Session
from entrostat.trainer_adapters.trainer_kinds import kind_of
from entrostat.wire.errors import AttachError
from entrostat.wire.messages import ActiveIntervention, DesiredState

NO_SERVER = "http://127.0.0.1:9"


class Mine(Trainer):
    """A user's own subclass."""


class MySFT(SFTTrainer):
    """A user's own subclass."""


@pytest.mark.parametrize("cls", [Trainer, Mine, Seq2SeqTrainer])
def test_a_trainer_of_a_causal_model_and_what_users_derive_from_it_is_supervised(tmp_path, cls):
    trainer = tiny_sft.plain(tmp_path)
    trainer.__class__ = cls

    assert kind_of(trainer) == "supervised"


def test_what_users_derive_from_sft_is_supervised_and_grpo_is_not(tmp_path):
    sft = tiny_sft.sft(tmp_path)
    sft.__class__ = MySFT

    assert kind_of(sft) == "supervised"
    assert kind_of(tiny_trl.trainer(tmp_path)) == "policy"


def test_a_trainer_of_pairs_is_refused_by_name(tmp_path):
    rows = [{"prompt": "a b", "chosen": " c d", "rejected": " e f"}] * 4
    trainer = DPOTrainer(
        model=tiny_trl.model(),
        ref_model=tiny_trl.model(),
        args=DPOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True, report_to=[]),
        train_dataset=Dataset.from_list(rows),
        processing_class=tiny_trl.tokenizer(),
    )

    with pytest.raises(AttachError, match=r"TRL's DPOTrainer is not that of single texts.*entrostat\.Probe"):
        entrostat.attach(trainer)


@pytest.mark.parametrize("name", ["KTOTrainer", "RewardTrainer"])
def test_trls_other_trainers_are_refused_by_their_class(tmp_path, name):
    import trl

    trainer = tiny_sft.plain(tmp_path)
    trainer.__class__ = getattr(trl, name)

    with pytest.raises(AttachError, match=name):
        kind_of(trainer)


def test_a_model_that_is_no_decoder_is_refused_by_name(tmp_path):
    config = T5Config(vocab_size=22, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])

    with pytest.raises(AttachError, match=r"T5ForConditionalGeneration.*decoder"):
        entrostat.attach(Trainer(model=T5ForConditionalGeneration(config), args=arguments))
    with pytest.raises(AttachError, match=r"Linear.*decoder"):
        entrostat.attach(Trainer(model=torch.nn.Linear(2, 2), args=arguments))


def test_a_text_cut_over_ranks_is_refused_with_the_setting(tmp_path):
    trainer = tiny_sft.plain(tmp_path)
    trainer.accelerator.state.parallelism_config = type("Sizes", (), {"cp_enabled": True, "tp_enabled": False})()

    with pytest.raises(AttachError, match="cp_size above 1"):
        entrostat.attach(trainer)


def test_a_loss_that_has_moved_is_named_with_the_version(tmp_path, monkeypatch):
    trainer = tiny_sft.plain(tmp_path)
    monkeypatch.setattr(Trainer, "compute_loss", lambda self, batch: None)

    with pytest.raises(AttachError, match=r"transformers \d.*compute_loss takes \['batch'\]"):
        entrostat.attach(trainer)


def test_interventions_on_the_loss_are_refused_with_the_reason(tmp_path):
    trainer = tiny_sft.sft(tmp_path)
    for name, reason in (("scope", "no advantages"), ("entropy_bonus", "no advantages"), ("dlc", "samples nothing")):
        with pytest.raises(AttachError, match=reason):
            entrostat.attach(trainer, mode="act", allow=[name])
    with pytest.raises(AttachError, match=r"reference=.*no advantages"):
        entrostat.attach(trainer, reference=entrostat.FrozenCopy())

    handle = entrostat.attach(trainer, mode="act", url=NO_SERVER, directory=tmp_path / "spool")
    assert sorted(handle.boundary.permissions.allow) == ["learning_rate", "pause", "save_checkpoint", "stop"]


# Acting ---------------------------------------------------------------------------------------------------------------


def item(name, **params):
    return ActiveIntervention(name=name, params=params, because="a test", by="person:anna")


class Watcher(TrainerCallback):
    """The learning rate of each update."""

    def __init__(self, trainer):
        self.trainer, self.rates = trainer, []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.rates.append(self.trainer.optimizer.param_groups[0]["lr"])


def run(folder, monkeypatch, plan, **settings):
    """Train with what ``plan`` (first step -> items) wants in the place of a server; trainer and learning rates."""
    trainer = tiny_sft.plain(folder / "out", lr_scheduler_type="constant", **settings)
    entrostat.attach(trainer, url=NO_SERVER, directory=folder / "spool", mode="act")
    watcher = Watcher(trainer)
    trainer.add_callback(watcher)

    def intent(_session, waited_s=0.0):
        step = trainer.state.global_step + 1
        items = plan[max((s for s in plan if s <= step), default=None)] if min(plan) <= step else []
        return Intent(DesiredState(version=step, interventions=items), waited_s=waited_s)

    monkeypatch.setattr(Session, "intent", intent)
    trainer.train()
    return trainer, watcher.rates


def test_the_learning_rate_is_scaled_while_that_is_on_and_both_switches_are_events(tmp_path, monkeypatch):
    trainer, rates = run(tmp_path, monkeypatch, {2: [item("learning_rate", factor=0.25)], 4: []}, max_steps=4)

    assert rates == pytest.approx([1e-3, 2.5e-4, 2.5e-4, 1e-3])
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)
    events = spooled(tmp_path / "spool")[0]["event"].to_dict("records")
    switches = [(e["kind"], e["step"]) for e in events if e["kind"].startswith("intervention_")]
    assert switches == [("intervention_on", 2), ("intervention_off", 4)]
    by = json.loads(next(e["detail"] for e in events if e["kind"] == "intervention_on"))
    assert by["by"] == "person:anna"


def test_stop_ends_the_training_with_a_checkpoint_and_save_saves_once(tmp_path, monkeypatch):
    trainer, _ = run(tmp_path / "a", monkeypatch, {2: [item("stop")]}, max_steps=5)
    assert trainer.state.global_step == 2
    assert (tmp_path / "a" / "out" / "checkpoint-2").is_dir()

    run(tmp_path / "b", monkeypatch, {2: [item("save_checkpoint")]}, max_steps=4)
    assert [p.name for p in (tmp_path / "b" / "out").glob("checkpoint-*")] == ["checkpoint-2"]


def test_a_pause_ends_by_itself_and_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(boundary, "PAUSE_POLL_S", 0.02)
    trainer, _ = run(tmp_path, monkeypatch, {2: [item("pause", at_most_s=0.1)]}, max_steps=3)

    assert trainer.state.global_step == 3
    events = spooled(tmp_path / "spool")[0]["event"]
    assert events[events.kind == "intervention_refused"].message.str.contains(r"it lasted 0\.1 s").sum() == 1


def test_what_acts_on_the_loss_is_refused_while_training_runs(tmp_path, monkeypatch):
    trainer, _ = run(tmp_path, monkeypatch, {2: [item("scope", q=0.25)]}, max_steps=3)

    assert trainer.state.global_step == 3
    events = spooled(tmp_path / "spool")[0]["event"]
    refused = events[events.kind == "intervention_refused"]
    assert len(refused) == 1
    assert "scope" in refused.message.iloc[0]


def test_allowed_to_be_acted_on_with_nothing_wanted_no_weight_changes(tmp_path, monkeypatch):
    alone = tiny_sft.plain(tmp_path / "alone", lr_scheduler_type="constant")
    alone.train()
    trainer, _ = run(tmp_path, monkeypatch, {1: []})

    assert all(torch.equal(a, b) for a, b in zip(alone.model.parameters(), trainer.model.parameters(), strict=True))
