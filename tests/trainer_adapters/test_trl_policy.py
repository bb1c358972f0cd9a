"""entrostat.attach on real TRL trainers: nothing they compute changes, and what is recorded is what they computed."""

import json
import os

import numpy as np
import pytest
import torch
from support import tiny_trl
from support.spool import spooled, values_of

import entrostat
from entrostat.wire.errors import AttachError

os.environ.setdefault("OMP_NUM_THREADS", "1")
NO_SERVER = "http://127.0.0.1:9"  # the discard port: nobody answers, everything stays in the spool


def attach(trainer, folder, **options):
    return entrostat.attach(trainer, url=NO_SERVER, directory=folder, **options)


class GradientTrace:
    """Every loss and every gradient of a run, as the optimizer sees them."""

    def __init__(self, trainer):
        self.losses, self.gradients = [], []
        original = trainer.training_step

        def training_step(*args, **kwargs):
            loss = original(*args, **kwargs)
            self.losses.append(loss.clone())
            self.gradients.append([p.grad.clone() for p in trainer.model.parameters() if p.grad is not None])
            return loss

        trainer.training_step = training_step


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("grpo", {}),
        ("grpo", {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}),
        ("grpo", {"num_iterations": 2, "loss_type": "grpo"}),
        ("grpo", {"gradient_checkpointing": True, "beta": 0.1}),
        ("rloo", {}),
        ("rloo", {"num_iterations": 2, "beta": 0.05}),
    ],
)
def test_every_loss_and_gradient_is_the_same_to_the_bit(tmp_path, kind, settings):
    traces, weights = [], []
    for is_attached in (False, True):
        trainer = tiny_trl.trainer(tmp_path / "out", kind, **settings)
        trace = GradientTrace(trainer)
        if is_attached:
            attach(trainer, tmp_path / "spool", tokens=20)
        trainer.train()
        traces.append(trace)
        weights.append([p.detach().clone() for p in trainer.model.parameters()])

    plain, watched = traces
    assert len(plain.losses) == len(watched.losses) > 0
    assert all(torch.equal(a, b) for a, b in zip(plain.losses, watched.losses, strict=True))
    assert all(
        torch.equal(a, b)
        for x, y in zip(plain.gradients, watched.gradients, strict=True)
        for a, b in zip(x, y, strict=True)
    )
    assert any(g.abs().sum() > 0 for g in plain.gradients[0])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    assert len(spooled(tmp_path / "spool")[0]["step_metric"]) > 0


def test_signals_are_trls_own_numbers_and_those_of_a_second_forward(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", learning_rate=0.0, max_steps=2)
    seen = []
    original = trainer._compute_loss

    def compute_loss(model, inputs):
        seen.append({k: v.clone() for k, v in inputs.items() if isinstance(v, torch.Tensor)})
        return original(model, inputs)

    trainer._compute_loss = compute_loss
    attach(trainer, tmp_path / "spool")
    trainer.train()

    tables, _ = spooled(tmp_path / "spool")
    values = values_of(tables["step_metric"], 1)
    logged = next(row for row in trainer.state.log_history if row.get("step") == 1)
    assert values["entropy_mean"] == pytest.approx(logged["entropy"], rel=1e-5)
    assert values["reward_mean"] == pytest.approx(logged["reward"], rel=1e-6)
    assert values["reward_std"] == pytest.approx(logged["reward_std"], rel=1e-5)
    assert values["zero_variance_groups"] == pytest.approx(logged["frac_reward_zero_std"])
    assert values["truncated_rate"] == pytest.approx(logged["completions/clipped_ratio"])
    assert values["length_mean"] == pytest.approx(logged["completions/mean_length"], rel=1e-6)
    assert values["clip_fraction_low"] == logged["clip_ratio/low_mean"] == 0
    assert values["trainer/loss"] == pytest.approx(logged["loss"])

    inputs = seen[0]
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    with torch.no_grad():
        logits = trainer.model(input_ids=ids, attention_mask=attention).logits.double() / 0.9
    width = inputs["completion_ids"].shape[1]
    logps = logits[:, -width - 1 : -1].log_softmax(-1)
    mask = inputs["completion_mask"].bool()
    top = logps.sort(-1, descending=True).values[..., 1].masked_fill(~mask, 0)
    assert values["rank_logp_2"] == pytest.approx((top.sum(1) / mask.sum(1)).mean().item(), rel=1e-4)
    is_top = logps.argmax(-1) == inputs["completion_ids"]
    assert values["top1_rate"] == pytest.approx(is_top[mask].double().mean().item())
    token = tables["token"][tables["token"].step == 1]
    entropy = (-(logps.exp() * logps).sum(-1))[mask]
    assert token.entropy.to_numpy() == pytest.approx(entropy.numpy(), rel=1e-4)
    assert np.stack(token.top_ids.to_numpy()).tolist() == logps.topk(3, -1).indices[mask].tolist()
    assert token.sum_p2.to_numpy() == pytest.approx(logps.exp().square().sum(-1)[mask].numpy(), rel=1e-4)


def test_each_response_keeps_its_own_prompt_and_reward_through_trls_shuffle(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", per_device_train_batch_size=8, gradient_accumulation_steps=2)
    attach(trainer, tmp_path / "spool")
    trainer.train()

    sequence = spooled(tmp_path / "spool")[0]["sequence"]
    step = sequence[sequence.step == 2]
    assert len(step) == 16
    for _, group in step.groupby("prompt"):
        assert len(group) == 4
        spread = group.reward.std(ddof=1)
        expected = (group.reward - group.reward.mean()) / (spread + 1e-4)
        assert group.advantage.to_numpy() == pytest.approx(expected.to_numpy(), abs=1e-3)


def test_with_two_updates_per_rollout_ratios_move_and_reward_signals_come_once_per_generation(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", num_iterations=2, max_steps=4, learning_rate=0.05)
    attach(trainer, tmp_path / "spool")
    trainer.train()

    metrics = spooled(tmp_path / "spool")[0]["step_metric"]
    first, second = values_of(metrics, 1), values_of(metrics, 2)
    assert first["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert second["ratio_max"] > 1.01
    assert second["approx_kl"] > first["approx_kl"]
    assert "reward_mean" in first
    assert "reward_mean" not in second
    assert "entropy_mean" in second


def test_steps_per_generation_spreads_a_rollout_over_steps(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", per_device_train_batch_size=8, steps_per_generation=2, max_steps=4)
    attach(trainer, tmp_path / "spool")
    trainer.train()

    metrics = spooled(tmp_path / "spool")[0]["step_metric"]
    counts = [values_of(metrics, step)["num_responses"] for step in (1, 2, 3, 4)]
    assert counts == [8, 8, 8, 8]
    assert ["pass_at_1" in values_of(metrics, step) for step in (1, 2, 3, 4)] == [True, False, True, False]


def test_a_lora_adapter_is_watched_through_its_base_model(tmp_path):
    peft = pytest.importorskip("peft", reason="PEFT is part of the dev extra; without it there is nothing to test")
    policy = peft.get_peft_model(tiny_trl.model(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    trainer = tiny_trl.trainer(tmp_path / "out", policy=policy, gradient_checkpointing=True)
    attach(trainer, tmp_path / "spool")
    trainer.train()

    values = values_of(spooled(tmp_path / "spool")[0]["step_metric"], 3)
    assert {"entropy_mean", "rank_logp_1", "top1_rate"} <= set(values)


def test_evaluation_leaves_no_trace_in_the_training_steps(tmp_path):
    trainer = tiny_trl.trainer(
        tmp_path / "out",
        eval_dataset=tiny_trl.dataset().select(range(8)),
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=16,
    )
    attach(trainer, tmp_path / "spool")
    trainer.train()

    metrics = spooled(tmp_path / "spool")[0]["step_metric"]
    assert [values_of(metrics, step)["num_responses"] for step in (1, 2, 3)] == [16, 16, 16]
    assert any(name.startswith("trainer/eval_") for name in values_of(metrics, 2))


def test_a_run_resumed_from_a_checkpoint_goes_on_under_its_name_and_step_numbers(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    first = tiny_trl.trainer(tmp_path / "out", **settings)
    handle = attach(first, tmp_path / "spool")
    first.train()

    second = tiny_trl.trainer(tmp_path / "out", **settings)
    again = attach(second, tmp_path / "spool")
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))

    tables, openings = spooled(tmp_path / "spool")
    assert again.run_id == handle.run_id
    assert [o["resume_step"] for o in openings] == [None, 2]
    steps = tables["step_metric"][tables["step_metric"].name == "entropy_mean"].step.tolist()
    assert steps == [1, 2, 3, 4, 3, 4]


def test_a_checkpoint_made_without_entrostat_can_be_resumed_with_it(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    tiny_trl.trainer(tmp_path / "out", **settings).train()

    trainer = tiny_trl.trainer(tmp_path / "out", **settings)
    attach(trainer, tmp_path / "spool")
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))

    assert trainer.state.global_step == 4


def test_detach_leaves_the_trainer_as_it_was_found(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out")
    before = dict(trainer.__dict__), trainer.model.forward, len(trainer.model.base_model._forward_hooks)
    callbacks = list(trainer.callback_handler.callbacks)

    attach(trainer, tmp_path / "spool").detach()

    assert before[0].keys() == trainer.__dict__.keys()
    assert trainer.model.forward == before[1]
    assert len(trainer.model.base_model._forward_hooks) == before[2]
    assert trainer.callback_handler.callbacks == callbacks
    trainer.train()


def test_the_callback_is_the_same_as_attach(tmp_path):
    callback = entrostat.Callback(url=NO_SERVER, directory=tmp_path / "spool", run="by-callback")
    tiny_trl.trainer(tmp_path / "out", callbacks=[callback]).train()

    tables, openings = spooled(tmp_path / "spool")
    steps = tables["step_metric"][tables["step_metric"].name == "entropy_mean"].step.tolist()
    assert steps == [1, 2, 3]
    assert openings[0]["run_id"] == "by-callback"


def test_the_run_tells_its_settings_versions_and_start_without_secrets(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", hub_token="hf_secret_value")
    attach(trainer, tmp_path / "spool", tags={"team": "a"})
    trainer.train()

    tables, openings = spooled(tmp_path / "spool")
    opening = openings[0]
    assert opening["config"]["training"]["learning_rate"] == 1e-3
    assert opening["config"]["model"]["hidden_size"] == 32
    assert {"torch", "trl", "transformers"} <= set(opening["versions"])
    assert opening["tags"] == {"team": "a"}
    assert opening["settings"]["head"] == "trainer"
    assert "hf_secret_value" not in json.dumps(opening)
    assert tables["event"].kind.tolist()[0] == "run_started"
    assert tables["event"].kind.tolist()[-1] == "run_ended"


def test_an_error_of_ours_is_recorded_and_training_goes_on(tmp_path, monkeypatch):
    def broken(*_args, **_kwargs):
        raise RuntimeError("planted")

    monkeypatch.setattr("entrostat.trainer_adapters.trl_policy.capture", broken)
    trainer = tiny_trl.trainer(tmp_path / "out")
    attach(trainer, tmp_path / "spool")
    trainer.train()

    events = spooled(tmp_path / "spool")[0]["event"]
    assert trainer.state.global_step == 3
    assert events[events.kind == "warning"].message.str.contains("planted").sum() == 1


def test_attaching_twice_or_to_something_else_is_refused_with_the_way_out(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out")
    handle = attach(trainer, tmp_path / "spool")
    with pytest.raises(AttachError, match="detach"):
        attach(trainer, tmp_path / "spool")
    handle.detach()

    with pytest.raises(AttachError, match=r"entrostat\.Probe"):
        entrostat.attach(object())


def test_a_private_method_that_has_moved_is_named_with_the_version(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out")
    trainer._compute_loss = lambda batch: None

    with pytest.raises(AttachError, match=r"TRL \d.*_compute_loss takes \['batch'\]"):
        attach(trainer, tmp_path / "spool")


@pytest.mark.parametrize(
    ("option", "message"),
    [({"tokens": -1}, "tokens=-1"), ({"candidates": 2}, "candidates=2"), ({"baseline_steps": 0}, "baseline_steps=0")],
)
def test_an_option_out_of_range_is_named(tmp_path, option, message):
    with pytest.raises(ValueError, match=message):
        attach(tiny_trl.trainer(tmp_path / "out"), tmp_path / "spool", **option)
