"""What a map calls the same is the same number on real TRL trainings; where a condition fails, for that reason."""

import json
import math

import numpy as np
import pytest
import torch
from support import tiny_trl
from support.spool import spooled, values_of

import entrostat
from entrostat.wire.metric_names import mapped

NO_SERVER = "http://127.0.0.1:9"  # the discard port: nobody answers, everything stays in the spool
PAD, END = 0, 1
FLOAT32 = 2e-6
"""TRL adds up in float32, we in float64."""


NO_PADDING = {"generation_kwargs": {"suppress_tokens": [PAD]}}
"""So small a model samples the padding token like any other; a trained one does not."""


def run(folder, kind="grpo", **settings):
    """Our values and TRL's own numbers, a dictionary a step each, and the events."""
    trainer = tiny_trl.trainer(folder / "out", kind, **(NO_PADDING | settings))
    entrostat.attach(trainer, url=NO_SERVER, directory=folder / "spool")
    trainer.train()
    tables, _ = spooled(folder / "spool")
    steps = [values_of(tables["step_metric"], step) for step in range(1, trainer.state.global_step + 1)]
    ours = [{k: v for k, v in values.items() if not k.startswith("trainer/")} for values in steps]
    theirs = [{k[8:]: v for k, v in values.items() if k.startswith("trainer/")} for values in steps]
    return ours, theirs, tables["event"]


def pairs(ours, theirs):
    """(signal, our value, TRL's in our unit) of every step and mapped key."""
    return [
        (signal, own[signal], value)
        for own, other in zip(ours, theirs)
        for signal, value in mapped(other, "trl").values.items()
        if signal in own
    ]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        # With one update a generation the ratios are 1: what is said of clipping is only that both are 0.
        ("grpo", {}),
        ("grpo", {"beta": 0.1, "scale_rewards": "none"}),
        ("grpo", {"num_iterations": 2, "learning_rate": 0.05, "max_steps": 4, "loss_type": "grpo"}),
        (
            "grpo",
            {"num_iterations": 2, "learning_rate": 0.05, "max_steps": 4, "importance_sampling_level": "sequence"},
        ),
        ("rloo", {}),
        ("rloo", {"num_iterations": 2, "learning_rate": 0.05, "max_steps": 4}),
    ],
)
def test_what_is_called_the_same_is_the_same(tmp_path, kind, settings):
    ours, theirs, _ = run(tmp_path, kind, **settings)
    found = pairs(ours, theirs)

    assert {signal for signal, _, _ in found} == {
        "entropy_mean", "reward_mean", "reward_std", "zero_variance_groups", "length_mean", "length_max",
        "truncated_rate", "clip_fraction_low", "clip_fraction_high",
    }  # fmt: skip
    wrong = [(s, a, b) for s, a, b in found if not math.isclose(a, b, rel_tol=FLOAT32, abs_tol=1e-7)]
    assert wrong == []
    if settings.get("num_iterations") == 2:
        clipped = [a for s, a, _ in found if s.startswith("clip_fraction")]
        assert max(clipped) > 0  # or nothing was said about clipping


def test_of_several_micro_batches_trl_logs_the_plain_mean_of_means_and_we_weigh_by_tokens(tmp_path):
    trainer = tiny_trl.trainer(
        tmp_path / "out", per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=1
    )
    entrostat.attach(trainer, url=NO_SERVER, directory=tmp_path / "spool")
    sums, counts = [], []
    original = trainer._get_per_token_logps_and_entropies

    def watched(*args, **kwargs):
        result = original(*args, **kwargs)
        if kwargs.get("compute_entropy") and torch.is_grad_enabled():
            sums.append(result[1].double().sum().item())  # 0 on padding
            counts.append(int((result[1] != 0).sum()))
        return result

    trainer._get_per_token_logps_and_entropies = watched
    trainer.train()
    values = values_of(spooled(tmp_path / "spool")[0]["step_metric"], 1)
    sums, counts = np.array(sums), np.array(counts)

    assert len(set(counts)) > 1
    assert values["entropy_mean"] == pytest.approx(sums.sum() / counts.sum(), rel=FLOAT32)
    assert values["trainer/entropy"] == pytest.approx((sums / counts).mean(), rel=FLOAT32)
    assert abs(values["entropy_mean"] - values["trainer/entropy"]) > 1e-5
    # What TRL reads from the whole generation is not averaged over micro-batches.
    assert values["length_mean"] == pytest.approx(values["trainer/completions/mean_length"], rel=FLOAT32)
    assert values["reward_mean"] == pytest.approx(values["trainer/reward"], rel=FLOAT32)


def test_a_completion_cut_at_a_padding_token_is_cut_for_us_alone(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", max_steps=3)
    entrostat.attach(trainer, url=NO_SERVER, directory=tmp_path / "spool")
    batches = []
    original = trainer._compute_loss

    def compute_loss(model, inputs):
        batches.append(
            [ids[mask == 1].tolist() for ids, mask in zip(inputs["completion_ids"], inputs["completion_mask"])]
        )
        return original(model, inputs)

    trainer._compute_loss = compute_loss
    trainer.train()
    metrics = spooled(tmp_path / "spool")[0]["step_metric"]

    for step, completions in enumerate(batches, start=1):
        values = values_of(metrics, step)
        cut = [END not in ids for ids in completions]
        cut_for_trl = [ids[-1] not in (END, PAD) for ids in completions]
        assert values["truncated_rate"] == pytest.approx(np.mean(cut))
        assert values["trainer/completions/clipped_ratio"] == pytest.approx(np.mean(cut_for_trl))
    assert any(ids[-1] == PAD for completions in batches for ids in completions)


def test_a_generation_for_two_steps_is_counted_whole_by_trl_and_by_step_by_us(tmp_path):
    ours, theirs, _ = run(tmp_path, per_device_train_batch_size=8, steps_per_generation=2, max_steps=2)

    assert [own["num_responses"] for own in ours] == [8, 8]
    assert "completions/mean_length" not in theirs[1]
    both = (ours[0]["length_mean"] + ours[1]["length_mean"]) / 2
    assert both == pytest.approx(theirs[0]["completions/mean_length"], rel=FLOAT32)
    assert ours[0]["reward_mean"] == pytest.approx(theirs[0]["reward"], rel=FLOAT32)


def test_of_the_key_that_adds_both_sides_ours_are_the_summands(tmp_path):
    ours, theirs, _ = run(tmp_path, num_iterations=2, learning_rate=0.05, max_steps=4)
    both = [own["clip_fraction_low"] + own["clip_fraction_high"] for own in ours]

    assert max(both) > 0
    assert both == pytest.approx([other["clip_ratio/region_mean"] for other in theirs], rel=FLOAT32)


def test_trls_count_of_tokens_is_another_quantity_of_the_same_name(tmp_path):
    ours, theirs, _ = run(tmp_path, max_steps=2)

    assert ours[1]["num_tokens"] < theirs[1]["num_tokens"]
    assert "num_tokens" not in mapped(theirs[1], "trl").values


def test_trls_groups_without_spread_are_not_ours_where_it_compares_the_whole_batch(tmp_path):
    ours, theirs, _ = run(tmp_path, scale_rewards="batch", max_steps=2)

    assert {other["frac_reward_zero_std"] for other in theirs} <= {0.0, 1.0}
    assert [own["zero_variance_groups"] for own in ours] != [other["frac_reward_zero_std"] for other in theirs]


def test_the_record_of_a_run_says_once_what_each_key_means(tmp_path):
    _, theirs, events = run(tmp_path, max_steps=3)
    said = [json.loads(detail) for detail in events[events.kind == "metric_names"].detail]

    assert len(said) == 2  # the first log; what transformers adds when training ends
    assert {d["dialect"] for d in said} == {"trl"}
    assert said[0]["mapped"]["entropy"] == "entropy_mean"
    assert "micro-batch" in said[0]["when"]["entropy"]
    assert "prompts included" in said[0]["differs"]["num_tokens"]
    assert "train_runtime" in said[1]["own"]
    assert all(d["unmapped"] == [] for d in said)
    listed = [key for d in said for part in ("mapped", "differs", "own") for key in d[part]]
    assert set(listed) >= set(theirs[0])
    assert len(listed) == len(set(listed))
