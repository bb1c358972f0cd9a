"""The rollout probe in a real engine: it measures the distribution that was sampled from, and changes nothing."""

import pytest
import torch
from peers.vllm.rollouts import entropy, given, logits_of, responses
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from entrostat.trainer_adapters.vllm.live import install, remove
from entrostat.trainer_adapters.vllm.outputs import rollout_rows
from entrostat.trainer_adapters.vllm.rollout_probe import RolloutProbe


def sampling(**settings):
    return SamplingParams(**(dict(temperature=0.7, max_tokens=9, ignore_eos=True) | settings))


def generate(engine, params=None):
    torch.manual_seed(1)  # vLLM 0.32 on a CPU cannot have requests with a seed of their own and prompts in pieces
    return engine.llm.generate(given(), params or sampling(), use_tqdm=False)


def test_entropy_and_candidates_are_those_of_the_same_weights_in_transformers(tiny, engine):
    heats = [0.7, 1.3, 0.7, 0.4, 1.0, 1.3]
    outputs = generate(engine, [sampling(temperature=t, n=2) for t in heats])
    seen = engine.before.join(outputs)

    assert engine.before.failure is None
    assert seen.num_missing == 0
    assert seen.rows.mask.sum() == len(heats) * 2 * 9
    for row, prompt, tokens in responses(seen.rows):
        logits = logits_of(tiny.model, prompt, tokens) / heats[seen.rows.prompt[row]]
        logp, ids = logits.log_softmax(-1).topk(3)
        torch.testing.assert_close(seen.entropy[row], entropy(logits), atol=1e-4, rtol=0)
        torch.testing.assert_close(seen.logsumexp[row], logits.logsumexp(-1), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(seen.top_logps[row], logp, atol=1e-4, rtol=0)
        assert torch.equal(seen.top_ids[row], ids)


def test_a_greedy_request_is_measured_at_temperature_1(tiny, engine):
    seen = engine.before.join(generate(engine, sampling(temperature=0.0)))

    for row, prompt, tokens in responses(seen.rows):
        torch.testing.assert_close(seen.entropy[row], entropy(logits_of(tiny.model, prompt, tokens)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("is_flat", [False, True])
def test_it_agrees_with_what_vllm_itself_reports(engine, is_flat):
    outputs = generate(engine, sampling(logprobs=3, flat_logprobs=is_flat))
    seen, rows = engine.before.join(outputs), rollout_rows(outputs, 3)

    torch.testing.assert_close(seen.top_logps, rows.top_logps, atol=1e-5, rtol=0)
    assert torch.equal(seen.top_ids, rows.top_ids)
    assert rows.logp.isfinite().all()


def test_vllms_own_top_list_does_not_begin_with_the_sampled_token_in_order_of_rank(tiny, engine):
    """The trap of ``outputs.py``, on what vLLM returns: sampled tokens that are not the most likely are there."""
    rows = rollout_rows(generate(engine, sampling(logprobs=3, temperature=1.3)), 3)

    assert (rows.token_ids != rows.top_ids[..., 0]).any()
    for row, prompt, tokens in responses(rows):
        logp = (logits_of(tiny.model, prompt, tokens) / 1.3).log_softmax(-1)
        sampled = logp.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(rows.logp[row], sampled, atol=1e-4, rtol=0)


def test_top_k_does_not_reach_what_is_measured(engine):
    seen = engine.before.join(generate(engine, sampling(temperature=1.0, top_k=1)))

    assert (seen.entropy > 0.05).any()  # of the sampled distribution it would be 0 everywhere


def test_tokens_and_log_probs_are_the_same_with_and_without_and_a_late_one_measures_the_same(engine):
    with_probe = rollout_rows(generate(engine, sampling(logprobs=3)), 3)
    seen = engine.before.join(generate(engine))
    for made in (engine.before.made[0], engine.after.made[0]):
        remove(engine.llm, made)
    without = rollout_rows(generate(engine, sampling(logprobs=3)), 3)
    late = RolloutProbe(n=3)
    made = install(engine.llm, late.processor)
    measured = late.join(generate(engine))
    remove(engine.llm, made)
    for made in (engine.before.made[0], engine.after.made[0]):
        install_again(engine, made)

    assert torch.equal(with_probe.token_ids, without.token_ids)
    assert torch.equal(with_probe.logp, without.logp)
    assert torch.equal(with_probe.top_logps, without.top_logps)
    assert measured.num_missing == 0
    assert torch.equal(measured.entropy, seen.entropy)


def install_again(engine, made):
    """Where it stood: the first before DLC, the other behind."""
    listed = engine.processors()
    listed.insert(0 if made is engine.before.made[0] else len(listed), made)


def test_a_request_that_opts_out_is_not_measured_and_nonsense_is_refused(engine):
    some = [sampling(extra_args={"entrostat_rollout": i % 2}) for i in range(6)]
    seen = engine.before.join(generate(engine, some))

    assert seen.entropy.isnan().all(1).tolist() == [True, False] * 3
    assert seen.num_missing == 3 * 9
    with pytest.raises(VLLMValidationError, match="entrostat_rollout=2"):
        generate(engine, sampling(extra_args={"entrostat_rollout": 2}))
