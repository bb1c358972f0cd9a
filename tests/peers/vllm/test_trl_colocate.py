"""TRL's colocate mode on the CPU: probe, log-probs of candidates, steps and the mismatch, beside a run without them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import tiny_trl
from support.spool import spooled, values_of

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("colocate")
    tiny_trl.model(hidden_size=64, initializer_range=0.3).save_pretrained(folder / "policy")
    tiny_trl.tokenizer().save_pretrained(folder / "policy")
    script = Path(__file__).with_name("train_colocate.py")
    for kind in ("without", "with"):
        done = subprocess.run(
            [sys.executable, "-P", str(script), str(folder), kind],
            env=os.environ | {"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
    return folder, *(json.loads((folder / f"{kind}.json").read_text()) for kind in ("without", "with"))


def test_nothing_that_trl_computes_is_changed(runs):
    _, without, with_ours = runs

    clocks = {"step_time", "train_runtime", "num_tokens"}
    assert len(without["log"]) == 3
    assert all(entry["grad_norm"] > 0 for entry in without["log"])
    for one, other in zip(without["log"], with_ours["log"], strict=True):
        assert {k: v for k, v in one.items() if k not in clocks} == {k: v for k, v in other.items() if k not in clocks}
    assert without["weight"] == with_ours["weight"]


def test_every_token_is_measured_and_agrees_with_vllms_own_candidates(runs):
    _, _, found = runs

    assert found["failure"] is None
    assert found["missing"] == [0, 0, 0]
    assert found["num_listed"] in (3, 4)  # three candidates, and the sampled token where it is none of them
    assert max(found["top1_gap"]) < 1e-4
    assert found["steps"] == [{"entrostat_step": step} for step in (1, 2, 3)]


def test_the_engine_in_bfloat16_and_the_trainer_in_float32_differ_a_little_and_that_is_seen(runs):
    folder, _, found = runs
    metrics = spooled(folder / "spool")[0]["step_metric"]

    for step, entry in enumerate(found["log"], 1):
        values = values_of(metrics, step)
        assert 0 < values["rollout_logp_gap"] < 0.1
        assert values["rollout_logp_gap"] == pytest.approx(entry["sampling/sampling_logp_difference/mean"], rel=1e-4)
        assert values["rollout_ratio_out_share"] == 0
        # The same tokens and weights, measured in the engine and in the trainer.
        assert found["entropy"][step - 1] == pytest.approx(values["entropy_mean"], abs=0.05)
