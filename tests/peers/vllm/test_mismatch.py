"""The mismatch's signals: real rollouts of vLLM, and a trainer's forward of the same weights in transformers."""

import copy

import pytest
import torch
from peers.vllm.rollouts import given, logits_of, responses
from support.spool import spooled, values_of
from vllm import SamplingParams

import entrostat
from entrostat.trainer_adapters.vllm.outputs import rollout_rows

T = 0.8


def signals(folder, engine, model, temperature=T):
    """A step of a loop of one's own: rollouts from vLLM at T, observed with ``model`` at ``temperature``."""
    params = SamplingParams(temperature=T, max_tokens=12, n=4, logprobs=0, ignore_eos=True)
    torch.manual_seed(5)
    rows = rollout_rows(engine.llm.generate(given(), params, use_tqdm=False))
    logits = torch.zeros(*rows.token_ids.shape, model.config.vocab_size)
    for row, prompt, tokens in responses(rows):
        logits[row, : len(tokens)] = logits_of(model, prompt, tokens)
    with entrostat.Probe("mine", url="http://127.0.0.1:9", directory=folder, tokens=0) as probe:
        probe.observe(
            logits=logits, labels=rows.token_ids.clamp(min=0), mask=rows.mask, groups=rows.prompt,
            rollout_logps=rows.logp, temperature=temperature,
        )  # fmt: skip
        probe.end_step(1)
    return values_of(spooled(folder)[0]["step_metric"], 1)


def test_the_same_weights_in_float32_differ_by_rounding(tmp_path, tiny, engine):
    found = signals(tmp_path, engine, tiny.model)

    assert found["rollout_logp_gap"] < 1e-5
    assert abs(found["rollout_kl"]) < 1e-5
    assert found["rollout_ratio_max"] == pytest.approx(1, abs=1e-3)
    assert found["rollout_ratio_out_share"] == 0


def test_a_wrong_temperature_is_seen(tmp_path, tiny, engine):
    found = signals(tmp_path, engine, tiny.model, temperature=1.0)

    assert found["rollout_kl_k3"] > 0.01
    assert found["rollout_logp_gap"] > 0.1


def test_older_weights_are_seen(tmp_path, tiny, engine):
    """The trainer has moved on and the engine has not been told."""
    moved = copy.deepcopy(tiny.model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        weight = moved.lm_head.weight
        weight += 0.05 * torch.randn(weight.shape, generator=generator)
    found = signals(tmp_path, engine, moved)

    assert found["rollout_kl_k3"] > 0.01
    assert found["rollout_kl"] > 0.01
