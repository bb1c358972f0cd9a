"""Every key that TRL and verl log is one of our signals, says how it differs, or is known to be the trainer's own."""

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny_trl
from transformers import TrainerCallback

from entrostat.wire.metric_maps.entry import Dialect, Differs, Own, Same
from entrostat.wire.metric_names import DIALECTS, flat, mapped, naming, recognise
from entrostat.wire.signals import BY_NAME

VERL_KEYS = json.loads((Path(__file__).parents[1] / "reference" / "verl_keys.json").read_text())


class Keys(TrainerCallback):
    """Every key that reaches a callback, and so a tracker."""

    def __init__(self):
        self.found = set()

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.found |= set(logs)


def keys_of_training(folder, kind, **settings):
    keys = Keys()
    trainer = tiny_trl.trainer(folder, kind, callbacks=[keys], max_steps=1, **settings)
    trainer.train()
    return keys.found


# Which keys there are -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("grpo", {}, {"entropy", "clip_ratio/low_mean", "completions/mean_length"}),
        ("grpo", {"beta": 0.1, "entropy_coef": 0.01}, {"kl", "policy_loss", "entropy_coef"}),
        ("grpo", {"loss_type": "cispo"}, {"cispo_clip_ratio"}),
        ("grpo", {"loss_type": "vespo"}, {"vespo/phi_seq_mean"}),
        ("rloo", {"beta": 0.05}, {"kl", "clip_ratio/low_mean"}),
    ],
)
def test_every_key_of_a_real_training_is_known(tmp_path, kind, settings, expected):
    keys = keys_of_training(tmp_path, kind, **settings)

    assert expected <= keys
    assert naming(keys, "trl").unmapped == []


def test_every_key_of_a_real_evaluation_is_known_and_none_is_a_signal_of_a_step(tmp_path):
    evaluation = tiny_trl.dataset().select(range(4))
    keys = keys_of_training(
        tmp_path, "grpo", eval_dataset=evaluation, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=16
    )
    found = naming([key for key in keys if key.startswith("eval_")], "trl")

    assert {"eval_entropy", "eval_reward"} <= set(found.differs)
    assert found.unmapped == []
    assert found.names == {}


def test_every_key_of_a_real_sft_training_is_known(tmp_path):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    keys = Keys()
    SFTTrainer(
        model=tiny_trl.model(),
        args=SFTConfig(
            output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=4, report_to=[], bf16=False,
            use_cpu=True, save_strategy="no", logging_steps=1, disable_tqdm=True,
            gradient_checkpointing=False, max_length=16,
        ),
        train_dataset=Dataset.from_dict({"text": ["b c d e", "f g h", "a a b", "k l m n o"]}),
        processing_class=tiny_trl.tokenizer(),
        callbacks=[keys],
    ).train()  # fmt: skip

    assert {"entropy", "mean_token_accuracy", "loss"} <= keys.found
    assert naming(keys.found, "trl").unmapped == []
    assert naming(keys.found, "trl").names == {"entropy": "entropy_mean", "mean_token_accuracy": "top1_rate"}


@pytest.mark.parametrize("module", ["grpo_trainer", "rloo_trainer", "sft_trainer"])
def test_every_key_in_the_installed_source_is_known(module):
    """Also what needs vLLM, tools or a mixture of experts to be logged."""
    trainer = pytest.importorskip(f"trl.trainer.{module}")
    keys = re.findall(r'_metrics\[[^\]]+\]\[f?"([^"]+)"\]', inspect.getsource(trainer))
    sampled = [re.sub(r"\{[^}]*\}", "some", key) for key in keys]

    assert len(sampled) >= 4
    assert naming(sampled, "trl").unmapped == []


def test_no_entry_for_trl_is_left_over_from_another_release():
    modules = [pytest.importorskip(f"trl.trainer.{m}") for m in ("grpo_trainer", "rloo_trainer", "sft_trainer")]
    keys = {k for m in modules for k in re.findall(r'_metrics\[[^\]]+\]\[f?"([^"]+)"\]', inspect.getsource(m))}
    keys = {re.sub(r"\{[^}]*\}", "*", key) for key in keys}
    signals = {e.key for e in DIALECTS["trl"].entries if isinstance(e, (Same, Differs))} - {"grad_norm"}

    assert signals <= keys


def test_every_key_in_verls_source_is_known():
    """``verl_keys.json`` is made from the release's source; verl itself is run by make test-verl."""
    assert VERL_KEYS["version"] in DIALECTS["verl"].release
    assert len(VERL_KEYS["keys"]) > 200
    assert naming([key.replace("*", "some") for key in VERL_KEYS["keys"]], "verl").unmapped == []


def test_no_entry_for_verl_is_left_over_from_another_release():
    signals = {e.key for e in DIALECTS["verl"].entries if isinstance(e, (Same, Differs))}

    assert signals <= set(VERL_KEYS["keys"])


def test_a_key_of_a_release_to_come_is_reported_by_its_name():
    assert naming(["entropy", "clip_ratio/brand_new"], "trl").unmapped == ["clip_ratio/brand_new"]
    assert naming(["actor/entropy", "actor/brand_new"], "verl").unmapped == ["actor/brand_new"]


# What they mean -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "key", "signal"),
    [
        ("trl", "kl", "approx_kl"),
        ("trl", "num_tokens", "num_tokens"),
        ("trl", "cispo_clip_ratio", "clip_fraction_high"),
        ("verl", "actor/pg_clipfrac_lower", "clip_fraction_low"),
        ("verl", "actor/ppo_kl", "approx_kl"),
        ("verl", "response_length/clip_ratio", "truncated_rate"),
    ],
)
def test_a_key_that_only_looks_like_a_signal_is_not_that_signal(dialect, key, signal):
    found = mapped({key: 0.5}, dialect)

    assert found.values == {}
    assert key in found.naming.differs
    assert DIALECTS[dialect].entry(key).signal == signal


def test_a_condition_comes_with_the_name():
    assert "micro-batch" in mapped({"entropy": 1.0}, "trl").naming.when["entropy"]


def test_a_number_comes_in_our_sign_and_unit():
    assert mapped({"rollout_corr/training_log_ppl": 0.75}, "verl").values == {"sample_logp": -0.75}


def test_of_two_keys_for_one_signal_the_one_with_fewer_conditions_counts_whatever_the_order():
    metrics = {"critic/rewards/mean": 0.4, "critic/score/mean": 0.5}

    assert mapped(metrics).values == {"reward_mean": 0.5}
    assert mapped(dict(reversed(metrics.items()))).values == {"reward_mean": 0.5}
    assert set(mapped(metrics).naming.names) == set(metrics)


def test_our_own_names_mean_themselves_in_any_dictionary_unless_the_trainer_means_something_else():
    assert mapped({"entropy_mean": 1.5, "speed": 3.0}).values == {"entropy_mean": 1.5}
    assert mapped({"entropy_mean": 1.5, "speed": 3.0}).naming.unmapped == ["speed"]
    assert "num_tokens" not in mapped({"num_tokens": 10.0, "mean_token_accuracy": 1.0}).values


def test_every_signal_of_ours_can_be_imported_back():
    metrics = dict.fromkeys(BY_NAME, 1.0)

    assert mapped(metrics, "generic").values == metrics


# Dictionaries as trackers keep them ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metrics",
    [
        {"reward": 0.5, "completions/mean_length": 7.0},
        {"train/reward": 0.5, "train/completions/mean_length": 7.0},
        {"train": {"reward": 0.5, "completions": {"mean_length": 7.0}}},
        {"train.reward": 0.5, "train.completions.mean_length": 7.0},
        {"reward": torch.tensor(0.5), "completions/mean_length": np.float32(7.0)},
        {"reward": np.array([0.5]), "completions/mean_length": torch.tensor([7.0], requires_grad=True)},
    ],
)
def test_nesting_prefixes_and_kinds_of_numbers_change_nothing(metrics):
    found = mapped(metrics)

    assert found.dialect == "trl"
    assert found.values == {"reward_mean": 0.5, "length_mean": 7.0}


def test_an_evaluations_number_is_not_a_steps():
    found = mapped({"eval/reward": 0.5, "eval_entropy": 1.0, "train/reward": 0.25}, "trl")

    assert found.values == {"reward_mean": 0.25}
    assert set(found.naming.differs) == {"eval/reward", "eval_entropy"}


def test_what_is_no_finite_number_is_left_out_by_name():
    odd = {
        "text": "x", "flag": True, "none": None, "nan": float("nan"), "inf": np.inf, "many": np.ones(2),
        "huge": 10**400, "list": [1.0], "tensor": torch.ones(2),
        "elsewhere": torch.ones((), device="meta"), "complex": np.complex64(1),
    }  # fmt: skip
    found = flat(odd | {"one": 1})

    assert found.numbers == {"one": 1.0}
    assert found.left_out == list(odd)


def test_a_dialect_is_recognised_only_by_keys_that_no_other_trainer_logs():
    assert recognise(VERL_KEYS["keys"]).name == "verl"
    assert recognise(["loss", "entropy", "reward", "learning_rate", "epoch"]).name == "generic"
    assert recognise([]).name == "generic"


def test_a_key_listed_twice_or_a_signal_that_does_not_exist_fails_on_import():
    with pytest.raises(ValueError, match=r"listed twice: \['a'\]"):
        Dialect("x", "", (Own("a"), Differs("a", "approx_kl", "")), frozenset())
    with pytest.raises(ValueError, match=r"no such signals: \['entropie'\]"):
        Dialect("x", "", (Same("a", "entropie"),), frozenset())
