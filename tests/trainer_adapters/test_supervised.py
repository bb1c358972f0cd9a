"""entrostat.attach on transformers' Trainer and TRL's SFTTrainer: no number changes; what is said they computed.

A model that returns no logits stands in for Liger (``tiny_sft.WithoutLogits``); the real one is in tests/peers/liger.
"""

import os

import numpy as np
import pytest
import torch
from reference import token_stats_oracle as oracle
from support import tiny_sft, tiny_trl
from support.spool import spooled, values_of
from transformers import Trainer, TrainerCallback

import entrostat

os.environ.setdefault("OMP_NUM_THREADS", "1")
NO_SERVER = "http://127.0.0.1:9"


def attach(trainer, folder, **options):
    return entrostat.attach(trainer, url=NO_SERVER, directory=folder / "spool", **options)


def tables(folder):
    return spooled(folder / "spool")[0]


class Trace:
    """Every loss and gradient as the optimizer sees them, and how often the backbone was asked."""

    def __init__(self, trainer):
        self.losses, self.gradients, self.num_forwards = [], [], 0
        original = trainer.training_step

        def training_step(*args, **kwargs):
            loss = original(*args, **kwargs)
            self.losses.append(loss.clone())
            self.gradients.append([p.grad.clone() for p in trainer.model.parameters() if p.grad is not None])
            return loss

        trainer.training_step = training_step
        base = trainer.model.get_base_model() if hasattr(trainer.model, "peft_config") else trainer.model
        base.base_model.register_forward_hook(self._count)

    def _count(self, *_):
        self.num_forwards += 1


def summed_loss(outputs, labels, num_items_in_batch=None):
    logits = outputs.logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch


class Twice(Trainer):
    """A loss of the user's own that asks the model a second time."""

    def compute_loss(self, model, inputs, **kwargs):
        loss = super().compute_loss(model, dict(inputs), **kwargs)
        mirrored = {**inputs, "input_ids": inputs["input_ids"].flip(1)}
        return loss + 0.1 * model(**mirrored).loss


def lora(policy):
    peft = pytest.importorskip("peft", reason="PEFT is part of the dev extra")
    return peft.get_peft_model(policy, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


PLAIN, SFT = tiny_sft.plain, tiny_sft.sft
ACCUMULATE = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
PADDING_FREE = {"padding_free": True, "max_length": None}


@pytest.mark.parametrize(
    ("make", "settings", "policy"),
    [
        (PLAIN, {}, None),
        (PLAIN, ACCUMULATE, None),
        (PLAIN, ACCUMULATE | {"average_tokens_across_devices": False}, None),
        (PLAIN, {"label_smoothing_factor": 0.1, **ACCUMULATE}, None),
        (PLAIN, {"compute_loss_func": summed_loss, **ACCUMULATE}, None),
        (PLAIN, {"cls": Twice}, None),
        (PLAIN, {"gradient_checkpointing": True}, lambda: lora(tiny_trl.model())),
        (PLAIN, {}, tiny_sft.without_logits),
        (SFT, {}, None),
        (SFT, ACCUMULATE, None),
        (SFT, {"gradient_checkpointing": True}, None),
        (SFT, {"gradient_checkpointing": True}, lambda: lora(tiny_trl.model())),
        (SFT, {"label_smoothing_factor": 0.1}, None),
        (SFT, {"loss_type": "dft"}, None),
        (SFT, PADDING_FREE, None),
    ],
)
def test_every_loss_and_gradient_is_the_same_to_the_bit_and_the_model_is_asked_no_more_often(
    tmp_path, make, settings, policy
):
    traces, weights = [], []
    for is_attached in (False, True):
        trainer = make(tmp_path / "out", policy=policy() if policy else None, **settings)
        trace = Trace(trainer)
        if is_attached:
            attach(trainer, tmp_path, tokens=7)
        trainer.train()
        traces.append(trace)
        weights.append([p.detach().clone() for p in trainer.model.parameters()])

    alone, watched = traces
    assert len(alone.losses) == len(watched.losses) > 0
    assert all(torch.equal(a, b) for a, b in zip(alone.losses, watched.losses, strict=True))
    pairs = [(a, b) for x, y in zip(alone.gradients, watched.gradients, strict=True) for a, b in zip(x, y, strict=True)]
    assert any(a.abs().sum() > 0 for a, _ in pairs)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    assert watched.num_forwards == alone.num_forwards > 0
    found = values_of(tables(tmp_path)["step_metric"], 2)
    assert {"entropy_mean", "ppl", "rank_logp_1", "top1_rate", "num_tokens", "share_formal"} <= set(found)
    assert found["num_responses"] == 4  # each text once, whatever else the loss asked the model
    assert "warning" not in set(tables(tmp_path)["event"].kind)


def batches_of(trainer):
    """What the trainer's loss is given, as copies."""
    seen, original = [], trainer.compute_loss

    def compute_loss(model, inputs, *args, **kwargs):
        seen.append({k: v.clone() for k, v in inputs.items() if isinstance(v, torch.Tensor)})
        return original(model, inputs, *args, **kwargs)

    trainer.compute_loss = compute_loss
    return seen


def oracle_tokens(trainer, batch):
    """Per response its tokens' statistics, in float64, from a forward of the test's own."""
    model = trainer.model
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.double()
    responses = []
    for row, labels in zip(logits, batch["labels"], strict=True):
        places = [t for t in range(1, len(labels)) if labels[t] >= 0]
        responses.append([oracle.token_stats(row[t - 1].tolist(), int(labels[t]), 8) for t in places])
    return responses


def gemma():
    """A model whose head soft-caps its logits."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=len(tiny_trl.WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, max_position_embeddings=64, sliding_window=32,
        final_logit_softcapping=0.5, initializer_range=0.5, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    return Gemma2ForCausalLM(config)


@pytest.mark.parametrize(
    ("make", "policy", "rows"),
    [
        (PLAIN, None, None),
        (PLAIN, tiny_sft.without_logits, None),
        (PLAIN, gemma, None),
        (SFT, None, None),
        (SFT, None, tiny_sft.PROMPTS),
        (SFT, gemma, None),
        (SFT, lambda: lora(tiny_trl.model()), None),
    ],
)
def test_the_signals_are_those_of_the_formulas_on_the_same_batch(tmp_path, make, policy, rows):
    trainer = make(tmp_path / "out", policy=policy() if policy else None, rows=rows, learning_rate=0.0, max_steps=1)
    batches = batches_of(trainer)
    attach(trainer, tmp_path)
    trainer.train()

    responses = oracle_tokens(trainer, batches[0])
    tokens = [token for response in responses for token in response]
    found = values_of(tables(tmp_path)["step_metric"], 1)

    def mean(values):
        return float(np.mean(list(values)))

    assert found["entropy_mean"] == pytest.approx(mean(t["entropy"] for t in tokens), rel=1e-5)
    assert found["sample_logp"] == pytest.approx(mean(mean(t["logp"] for t in r) for r in responses), rel=1e-5)
    assert found["ppl"] == pytest.approx(mean(np.exp(-mean(t["logp"] for t in r)) for r in responses), rel=1e-5)
    for n in (1, 2, 3):
        expected = mean(mean(t["top_logps"][n - 1] for t in r) for r in responses)
        assert found[f"rank_logp_{n}"] == pytest.approx(expected, rel=1e-5)
    assert found["top1_rate"] == mean(t["is_top1"] for t in tokens)
    assert found["length_mean"] == mean(len(r) for r in responses)
    assert found["num_tokens"] == len(tokens)
    assert found["num_responses"] == len(responses)
    assert not {"reward_mean", "cov_mean", "zero_variance_groups", "approx_kl"} & set(found)

    row = tables(tmp_path)["token"]
    assert row.pos.tolist() == [i for r in responses for i in range(len(r))]
    assert row.logp.to_numpy() == pytest.approx([t["logp"] for t in tokens], rel=1e-4)
    assert row.sum_p2.to_numpy() == pytest.approx([t["sum_p2"] for t in tokens], rel=1e-4)
    assert row["rank"].tolist() == [t["rank"] for t in tokens]
    assert np.stack(row.top_ids.to_numpy()).tolist() == [t["top_ids"][:3] for t in tokens]


STEP_SIGNALS = ("entropy_mean", "sample_logp", "rank_logp_1", "rank_logp_2", "rank_logp_3", "ppl", "top1_rate",
                "self_certainty", "support95_mean", "length_mean", "length_max", "num_tokens", "num_responses",
                "share_formal", "entropy_formal", "repetition_rate")  # fmt: skip


@pytest.mark.parametrize("rows", [None, tiny_sft.PROMPTS])
def test_packed_padding_free_and_padded_documents_give_the_same_signals(tmp_path, rows):
    rows = (rows or [{"text": text} for text in tiny_sft.TEXTS])[:4]
    kinds = {"padded": {}, "free": PADDING_FREE, "packed": {"packing": True, "max_length": 32}}
    found, sequences = {}, {}
    for kind, settings in kinds.items():
        trainer = SFT(tmp_path / kind, rows=rows, max_steps=1, learning_rate=0.0, **settings)
        attach(trainer, tmp_path / kind)
        trainer.train()
        found[kind] = values_of(tables(tmp_path / kind)["step_metric"], 1)
        table = tables(tmp_path / kind)["token"]
        sequences[kind] = sorted(
            (tuple(doc.token_id), tuple(doc.pos), tuple(doc.logp.round(4))) for _, doc in table.groupby("seq")
        )

    for kind in ("free", "packed"):
        assert sequences[kind] == sequences["padded"]
        for name in STEP_SIGNALS:
            assert found[kind][name] == pytest.approx(found["padded"][name], rel=1e-5), (kind, name)
    assert found["padded"]["num_responses"] == 4


def test_prompt_tuning_puts_tokens_before_the_row_and_the_first_label_counts(tmp_path):
    peft = pytest.importorskip("peft", reason="PEFT is part of the dev extra")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    rows = [{"input_ids": [2, 3, 4]}, {"input_ids": [5, 6]}, {"input_ids": [7, 8, 9, 10]}, {"input_ids": [11]}]
    trainer = PLAIN(tmp_path / "out", rows=rows, policy=peft.get_peft_model(tiny_trl.model(), config), max_steps=1)
    losses = []
    trainer.training_step = lambda *a, step=trainer.training_step, **k: losses.append(step(*a, **k)) or losses[-1]
    attach(trainer, tmp_path)
    trainer.train()

    found = values_of(tables(tmp_path)["step_metric"], 1)
    row = tables(tmp_path)["token"]
    assert found["num_tokens"] == 10
    # transformers divides by the labels behind the first of each row.
    assert -row.logp.sum() / 6 == pytest.approx(losses[0].item(), rel=1e-5)


def test_without_a_tokenizer_texts_are_absent_with_the_reason_and_the_rest_is_there(tmp_path):
    trainer = PLAIN(tmp_path / "out", max_steps=1)
    trainer.processing_class = None
    attach(trainer, tmp_path)
    trainer.train()

    assert "entropy_mean" in values_of(tables(tmp_path)["step_metric"], 1)
    events = tables(tmp_path)["event"]
    absent = events[events.kind == "absent"].message.iloc[0]
    for reason in ("no tokenizer was at hand", "no advantages were given", "no rewards were given"):
        assert reason in absent
    assert "warning" not in set(events.kind)


@pytest.mark.parametrize("option", ["candidates", "covariance"])
@pytest.mark.parametrize("make", [PLAIN, SFT])
def test_a_family_switched_off_is_not_measured(tmp_path, make, option):
    trainer = make(tmp_path / "out", max_steps=1)
    attach(trainer, tmp_path, without=[option])
    trainer.train()

    found = values_of(tables(tmp_path)["step_metric"], 1)
    assert ("rank_logp_1" in found) == (option != "candidates")
    assert "entropy_mean" in found


def test_a_budget_of_token_rows_is_spread_over_the_steps_micro_batches(tmp_path):
    trainer = PLAIN(tmp_path / "out", max_steps=1, **ACCUMULATE)
    attach(trainer, tmp_path, tokens=6)
    trainer.train()

    assert len(tables(tmp_path)["token"]) == 6
    assert values_of(tables(tmp_path)["step_metric"], 1)["num_responses"] == 4


@pytest.mark.parametrize("make", [PLAIN, SFT])
def test_evaluation_leaves_no_trace_in_the_training_steps(tmp_path, make):
    trainer = make(tmp_path / "out", per_device_eval_batch_size=4)
    trainer.eval_dataset, trainer.args.eval_strategy, trainer.args.eval_steps = trainer.train_dataset, "steps", 1
    attach(trainer, tmp_path)

    class AsksOnItsOwn(TrainerCallback):
        def on_evaluate(self, *_, **__):
            trainer.compute_loss(trainer.model, next(iter(trainer.get_eval_dataloader())))  # with gradients

    trainer.add_callback(AsksOnItsOwn())
    trainer.train()

    metrics = tables(tmp_path)["step_metric"]
    assert [values_of(metrics, step)["num_responses"] for step in (1, 2)] == [4, 4]
    assert "trainer/eval_loss" in values_of(metrics, 1)


def test_a_resumed_run_goes_on_as_the_same_run(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    handle = attach(first := SFT(tmp_path / "out", **settings), tmp_path)
    first.train()
    again = attach(second := SFT(tmp_path / "out", **settings), tmp_path)
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))

    found, openings = spooled(tmp_path / "spool")
    assert again.run_id == handle.run_id
    assert [o["resume_step"] for o in openings] == [None, 2]
    assert openings[0]["trainer"] == "trl.SFTTrainer"
    assert openings[0]["settings"]["temperature"] == 1.0
    steps = found["step_metric"][found["step_metric"].name == "entropy_mean"].step.tolist()
    assert steps == [1, 2, 3, 4, 3, 4]


@pytest.mark.parametrize("make", [PLAIN, SFT])
def test_detach_and_even_the_end_of_a_loss_leave_no_trace(tmp_path, make):
    trainer = make(tmp_path / "out")
    forward, own = trainer.model.forward, trainer.model.__dict__.get("forward")
    hooks, callbacks = trainer.model.base_model._forward_hooks.copy(), list(trainer.callback_handler.callbacks)

    handle = attach(trainer, tmp_path)
    trainer.train()
    assert trainer.model.forward == forward
    assert trainer.model.__dict__.get("forward") is own
    assert trainer.model.base_model._forward_hooks == hooks
    handle.detach()

    assert trainer.callback_handler.callbacks == callbacks
    assert "compute_loss" not in trainer.__dict__
    assert "_entrostat_handle" not in trainer.__dict__


def test_the_callback_and_a_model_made_when_training_begins_are_watched(tmp_path):
    callback = entrostat.Callback(url=NO_SERVER, directory=tmp_path / "spool", run="by-callback")
    PLAIN(tmp_path / "out", callbacks=[callback], model_init=lambda: tiny_trl.model()).train()
    attach(trainer := PLAIN(tmp_path / "out", model_init=lambda: tiny_trl.model()), tmp_path, run="attached")
    trainer.train()

    found, openings = spooled(tmp_path / "spool")
    assert [o["run_id"] for o in openings] == ["by-callback", "attached"]
    steps = found["step_metric"][found["step_metric"].name == "ppl"].step.tolist()
    assert sorted(steps) == [1, 1, 2, 2]


def test_an_error_of_ours_is_recorded_and_training_goes_on_as_without_us(tmp_path, monkeypatch):
    def broken(*_args, **_kwargs):
        raise RuntimeError("planted")

    alone = PLAIN(tmp_path / "out")
    alone.train()
    monkeypatch.setattr("entrostat.trainer_adapters.supervised.from_logits", broken)
    attach(trainer := PLAIN(tmp_path / "out"), tmp_path)
    trainer.train()

    events = tables(tmp_path)["event"]
    assert events[events.kind == "warning"].message.str.contains("planted").sum() == 1
    assert all(torch.equal(a, b) for a, b in zip(alone.model.parameters(), trainer.model.parameters(), strict=True))


def test_a_batch_without_labels_is_said_once_and_not_measured(tmp_path):
    class Unlabelled(Trainer):
        def compute_loss(self, model, inputs, **kwargs):
            return model(input_ids=inputs["input_ids"]).logits.square().mean()

    def collator(rows):
        return {"input_ids": tiny_sft.collate(rows)["input_ids"]}

    attach(trainer := PLAIN(tmp_path / "out", cls=Unlabelled, collator=collator), tmp_path)
    trainer.train()

    events = tables(tmp_path)["event"]
    assert events[events.kind == "warning"].message.tolist() == [
        "nothing is measured: the batch has no labels that fit what the model gave"
    ]
    assert "entropy_mean" not in values_of(tables(tmp_path)["step_metric"], 1)


def test_a_head_that_is_not_whole_on_this_rank_means_no_candidates_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr("entrostat.trainer_adapters.supervised.is_whole", lambda _head: False)
    attach(trainer := SFT(tmp_path / "fused"), tmp_path / "fused")
    trainer.train()
    attach(other := PLAIN(tmp_path / "no-logits", policy=tiny_sft.without_logits()), tmp_path / "no-logits")
    other.train()
    attach(third := PLAIN(tmp_path / "logits"), tmp_path / "logits")
    third.train()

    def said(folder):
        events = tables(folder)["event"]
        return events[events.kind == "warning"].message.tolist(), set(values_of(tables(folder)["step_metric"], 1))

    warnings, found = said(tmp_path / "fused")
    assert warnings == ["no candidates: hidden states or the head's weight are not whole on this rank"]
    assert "entropy_mean" in found
    assert "rank_logp_1" not in found
    warnings, found = said(tmp_path / "no-logits")
    assert warnings == ["nothing is measured: there are no logits, and the head's weight is not whole here"]
    assert "entropy_mean" not in found
    warnings, found = said(tmp_path / "logits")
    assert warnings == []
    assert "rank_logp_1" in found
