"""DLC in a real engine: what is sampled from is softmax((f_theta - mu f_phi) / T)."""

import pytest
import torch
from peers.vllm.rollouts import entropy, given, logits_of, responses
from vllm import SamplingParams

from entrostat.trainer_adapters.vllm.outputs import rollout_rows

T = 0.8


def generate(engine, **settings):
    torch.manual_seed(3)
    params = dict(temperature=T, max_tokens=8, logprobs=3, ignore_eos=True) | settings
    return engine.llm.generate(given(), SamplingParams(**params), use_tqdm=False)


def calibrated(tiny, engine, mu, prompt, tokens):
    policy = logits_of(tiny.model, prompt, tokens)
    return (policy - mu * logits_of(engine.dlc.memory.model, prompt, tokens)) / T


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_the_log_probs_are_those_of_the_calibrated_distribution(tiny, engine, mu):
    engine.dlc.mu = mu
    outputs = generate(engine, n=2)
    rows, policy, sampled = rollout_rows(outputs, 3), engine.before.join(outputs), engine.after.join(outputs)

    assert engine.dlc.failure is None
    for row, prompt, tokens in responses(rows):
        logits = calibrated(tiny, engine, mu, prompt, tokens)
        logp = logits.log_softmax(-1)
        torch.testing.assert_close(rows.top_logps[row], logp.topk(3).values, atol=1e-4, rtol=0)
        drawn = logp.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(rows.logp[row], drawn, atol=1e-4, rtol=0)
        # A probe before DLC in the list measures the policy, one behind it what is sampled from.
        torch.testing.assert_close(sampled.entropy[row], entropy(logits), atol=1e-4, rtol=0)
        alone = logits_of(tiny.model, prompt, tokens) / T
        torch.testing.assert_close(policy.entropy[row], entropy(alone), atol=1e-4, rtol=0)


def test_greedy_takes_the_calibrated_argmax(tiny, engine):
    engine.dlc.mu = 1.0

    for _, prompt, tokens in responses(rollout_rows(generate(engine, temperature=0.0))):
        assert calibrated(tiny, engine, 1.0, prompt, tokens).argmax(-1).tolist() == tokens


def test_mu_0_samples_the_same_tokens_as_an_engine_without_it_and_more_samples_others(engine):
    off = rollout_rows(generate(engine), 3)
    processors = engine.processors()
    processors.remove(engine.dlc.made[0])
    without = rollout_rows(generate(engine), 3)
    processors.insert(1, engine.dlc.made[0])
    engine.dlc.mu = 1.0
    one_is_off = rollout_rows(generate(engine, extra_args={"entrostat_mu": 0}), 3)
    acting = rollout_rows(generate(engine), 3)

    assert torch.equal(off.token_ids, without.token_ids)
    assert torch.equal(off.top_logps, without.top_logps)
    assert torch.equal(one_is_off.top_logps, without.top_logps)
    assert not torch.equal(acting.token_ids, without.token_ids)
