"""Rewards from the policy: the oracle's numbers on full logits, inside real TRL training that they leave as it was."""

import pytest
import torch
from datasets import Dataset
from reference.token_stats_oracle import token_stats
from support import tiny_trl
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from entrostat.trainer_adapters.policy_confidence import Policy
from entrostat.trainer_adapters.reward_functions import (
    PolicyReward,
    bind_rewards,
    policy_of,
    self_certainty,
    token_entropy,
    trajectory_entropy,
)
from entrostat.wire.errors import AttachError

ALL = (self_certainty, token_entropy, trajectory_entropy)
SIZES = dict(
    vocab_size=22, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=1,
)  # fmt: skip
PROMPTS = [[5, 6, 7], [8], [9, 10], [4, 3, 2, 11, 12], [6, 6]]
COMPLETIONS = [[4, 5, 1], [7, 8, 9, 10, 2, 3], [1], [2, 2, 2, 2], [13, 14]]


def models():
    """Of each kind, with weights far from 0, in float64, and how the oracle must read its logits."""
    torch.manual_seed(0)
    gpt2 = GPT2Config(
        vocab_size=22, n_layer=2, n_embd=32, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=1, resid_pdrop=0.5,
        initializer_range=0.3,
    )  # fmt: skip
    return {
        "qwen2": tiny_trl.model(1, initializer_range=0.3),
        "gpt2, absolute positions and dropout": GPT2LMHeadModel(gpt2),
        "gemma2, soft-cap": Gemma2ForCausalLM(
            Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=2.0, initializer_range=0.3)
        ),
        "cohere, logit scale": CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.3, initializer_range=0.3)),
    }


def by_oracle(model, prompt, completion, temperature, is_own=None):
    """Entropy and self-certainty of each own token, one response at a time, from the model's own whole logits."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0].double()
    for module, mode in modes:
        module.training = mode
    seen = []
    for t, token in enumerate(completion):
        if is_own is None or is_own[t]:
            stats = token_stats(logits[len(prompt) + t - 1].tolist(), token, n=1, temperature=temperature)
            seen.append((stats["entropy"], stats["self_certainty"]))
    return seen


def expected_reward(name, seen, max_length):
    entropies, certainties = [h for h, _ in seen], [c for _, c in seen]
    return {
        "self_certainty": sum(certainties) / len(seen),
        "token_entropy": -sum(entropies) / len(seen),
        "trajectory_entropy": -sum(entropies) / max_length,
    }[name]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize(
    "kind", ["qwen2", "gpt2, absolute positions and dropout", "gemma2, soft-cap", "cohere, logit scale"]
)
def test_each_tokens_confidence_is_that_of_the_whole_logits(kind, batch_size):
    model = models()[kind].double().train()

    seen = Policy(model, temperature=0.7).confidence(PROMPTS, COMPLETIONS, batch_size=batch_size)

    assert seen.mask.sum(1).tolist() == [len(c) for c in COMPLETIONS]
    assert seen.entropy.dtype == torch.float64
    for i, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS)):
        expected = torch.tensor(by_oracle(model, prompt, completion, 0.7), dtype=torch.float64)
        assert torch.allclose(seen.entropy[i, : len(completion)], expected[:, 0], atol=1e-10)
        assert torch.allclose(seen.self_certainty[i, : len(completion)], expected[:, 1], atol=1e-10)
        assert not seen.entropy[i, len(completion) :].any()
    assert seen.self_certainty.max() > 0.1


def test_tokens_that_a_tool_wrote_are_context_and_are_not_measured():
    model = tiny_trl.model(1, initializer_range=0.3).double()
    own = [[1, 0, 1], [0, 0, 0, 0, 0, 0], [1], [0, 1, 1, 0], [1, 1]]

    seen = Policy(model).confidence(PROMPTS, COMPLETIONS, own)

    for i, mask in enumerate(own):
        assert seen.mask[i, : len(mask)].tolist() == [bool(m) for m in mask]
        expected = [c for _, c in by_oracle(model, PROMPTS[i], COMPLETIONS[i], 1.0, mask)]
        assert seen.self_certainty[i][seen.mask[i]].tolist() == pytest.approx(expected, abs=1e-10)


def test_asking_leaves_modes_gradients_and_random_numbers_alone():
    model = models()["gpt2, absolute positions and dropout"].train()
    model.transformer.h[0].eval()  # one that the user froze
    before = [module.training for module in model.modules()]
    random = torch.get_rng_state()

    first = Policy(model).confidence(PROMPTS, COMPLETIONS)
    second = Policy(model).confidence(PROMPTS, COMPLETIONS)

    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(first.entropy, second.entropy)  # 0.5 of dropout would differ
    assert not first.entropy.requires_grad
    assert all(p.grad is None for p in model.parameters())


class Heard:
    """Beside the rewards: what TRL handed over, and what the policy's whole logits say of it at that moment."""

    __name__ = "heard"

    def __init__(self, functions):
        self.functions, self.trainer, self.calls = functions, None, []

    def __call__(self, prompts, completion_ids, **columns):
        got = {f.__name__: f(prompts=prompts, completion_ids=completion_ids, **columns) for f in self.functions}
        tokenizer, causal_lm = self.trainer.processing_class, policy_of(self.trainer).causal_lm
        prompt_ids = [tokenizer(text)["input_ids"] for text in prompts]
        seen = [by_oracle(causal_lm, p, c, 0.9) for p, c in zip(prompt_ids, completion_ids)]
        self.calls.append((got, seen))
        return [0.0] * len(prompts)


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
@pytest.mark.parametrize("overrides", [{}, {"steps_per_generation": 2, "per_device_train_batch_size": 8}])
def test_inside_trl_each_response_has_the_oracles_reward(tmp_path, kind, overrides):
    functions = [make() for make in ALL]
    heard = Heard(functions)
    trainer = heard.trainer = tiny_trl.trainer(tmp_path, kind, reward_funcs=[heard], **overrides)
    for function in functions:
        function.bind(trainer)
    trainer.train()

    assert len(heard.calls) >= 2
    for got, seen in heard.calls:
        assert len(seen) == 16
        for name, rewards in got.items():
            expected = [expected_reward(name, each, max_length=8) for each in seen]
            assert rewards == pytest.approx(expected, abs=2e-5)
            assert max(rewards) > min(rewards)


def train(folder, functions, **overrides):
    """A trained trainer with these reward functions; its dropout draws random numbers."""
    policy = tiny_trl.model(attention_dropout=0.1)
    trainer = tiny_trl.trainer(folder, policy=policy, reward_funcs=functions, **overrides)
    bind_rewards(trainer)
    trainer.train()
    return trainer


def test_a_reward_that_is_asked_for_and_not_used_changes_no_bit_of_the_run(tmp_path):
    plain = train(tmp_path / "plain", [tiny_trl.reward])
    functions = [tiny_trl.reward, *(make() for make in ALL)]
    asked = train(tmp_path / "asked", functions, reward_weights=[1.0, 0.0, 0.0, 0.0])

    weights = zip(plain.model.state_dict().values(), asked.model.state_dict().values())
    assert all(torch.equal(a, b) for a, b in weights)
    start = tiny_trl.model(attention_dropout=0.1).state_dict().values()
    assert not all(torch.equal(a, b) for a, b in zip(start, plain.model.state_dict().values()))


def logged(trainer, name):
    return [row[f"rewards/{name}/mean"] for row in trainer.state.log_history if f"rewards/{name}/mean" in row]


def test_trained_on_its_own_certainty_a_policy_becomes_certain_and_trl_logs_it(tmp_path):
    functions = [self_certainty(), token_entropy()]
    trainer = train(tmp_path, functions, reward_weights=[1.0, 0.0], max_steps=25, learning_rate=5e-3)

    certainty, entropy = logged(trainer, "self_certainty"), logged(trainer, "token_entropy")
    assert len(certainty) == len(entropy) == 25
    assert sum(certainty[-5:]) > 5 * sum(certainty[:5])
    assert sum(entropy[-5:]) > sum(entropy[:5])  # the reward is minus the entropy
    # TRL measures the loss's own tokens: the same policy at the same temperature, before the update.
    trls = [row["entropy"] for row in trainer.state.log_history if "entropy" in row]
    assert -entropy[0] == pytest.approx(trls[0], rel=0.02)


def test_the_rewards_of_a_generation_share_one_measurement(tmp_path, monkeypatch):
    measured = []
    original = Policy.confidence
    monkeypatch.setattr(Policy, "confidence", lambda self, *a, **k: measured.append(1) or original(self, *a, **k))
    train(tmp_path, [make() for make in ALL], max_steps=3)

    assert len(measured) == 3


def test_under_peft_the_policy_is_the_adapted_one(tmp_path):
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(tiny_trl.model(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    trainer = tiny_trl.trainer(tmp_path, policy=adapted)

    seen = policy_of(trainer).confidence(PROMPTS, COMPLETIONS)

    adapted.eval()
    for i, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS)):
        expected = [h for h, _ in by_oracle(adapted, prompt, completion, 0.9)]
        assert seen.entropy[i, : len(completion)].tolist() == pytest.approx(expected, abs=2e-5)
    with adapted.disable_adapter():
        base = policy_of(trainer).confidence(PROMPTS, COMPLETIONS)
    assert (base.entropy - seen.entropy).abs().max() > 1e-3


@pytest.mark.parametrize("bf16", [False, True])
def test_the_entropies_are_those_of_trls_own_head_in_its_precision(tmp_path, bf16):
    trainer = tiny_trl.trainer(tmp_path, policy=tiny_trl.model(initializer_range=0.3), bf16=bf16)
    ids = torch.randint(2, 22, (6, 10), generator=torch.Generator().manual_seed(5))
    prompts, completions = ids[:, :4].tolist(), ids[:, 4:].tolist()
    trainer.model.eval()
    with torch.no_grad():
        _, trls, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), 6, compute_entropy=True
        )

    seen = policy_of(trainer).confidence(prompts, completions)

    assert torch.allclose(seen.entropy, trls.float(), atol=1e-5)
    full = Policy(trainer.model, trainer.temperature).confidence(prompts, completions)
    assert ((full.entropy - seen.entropy).abs().max() > 1e-3) == bf16  # or the precision would not have mattered


def test_a_rollout_functions_own_prompt_ids_and_its_environments_tokens_are_heeded(tmp_path):
    prompt_ids, completion_ids = [[5, 6, 7]] * 16, [[4, 5 + i % 4, 1] for i in range(16)]
    own = [[1, 0, 1]] * 15 + [[0, 0, 0]]  # the last response is the environment's alone

    def rollout(prompts, trainer):
        logprobs = [[0.0] * len(ids) for ids in completion_ids]
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "env_mask": own}

    got = []

    class Kept(PolicyReward):
        def __call__(self, *args, **kwargs):
            got.append(super().__call__(*args, **kwargs))
            return got[-1]

    made = self_certainty()
    kept = Kept(made.__name__, made._score)
    trainer = tiny_trl.trainer(tmp_path, rollout_func=rollout, max_steps=1, reward_funcs=[kept])
    bind_rewards(trainer)
    start = tiny_trl.model()
    trainer.train()

    assert got[0][-1] is None
    for i in range(15):
        expected = [c for _, c in by_oracle(start, prompt_ids[i], completion_ids[i], 0.9, own[i])]
        assert got[0][i] == pytest.approx(sum(expected) / 2, abs=2e-5)


def test_what_cannot_be_asked_is_refused_with_the_way_out(tmp_path):
    reward = self_certainty()
    with pytest.raises(ValueError, match=r"self_certainty has no policy: call .*bind_rewards\(trainer\)"):
        reward(prompts=["a"], completions=["b"], completion_ids=[[3]])
    with pytest.raises(AttachError, match="_generate takes None"):
        reward.bind(object())

    trainer = tiny_trl.trainer(tmp_path)
    reward.bind(trainer)
    with pytest.raises(ValueError, match="not those of the trainer's latest generation"):
        reward(prompts=["a"], completions=["b"], completion_ids=[[3]])
    image = [{"role": "user", "content": [{"type": "image", "image": None}, {"type": "text", "text": "a"}]}]
    with pytest.raises(ValueError, match="this batch has images"):
        reward(prompts=[image], completions=[[{"role": "assistant", "content": "b"}]], completion_ids=[[3]])
    with pytest.raises(ValueError, match="a prompt without tokens"):
        Policy(tiny_trl.model()).confidence([[]], [[3]])

    model = tiny_trl.model(tie_word_embeddings=False)
    model.lm_head.weight = torch.nn.Parameter(torch.empty(0))  # as ZeRO-3 leaves it
    with pytest.raises(ValueError, match="spread over ranks"):
        Policy(model).confidence(PROMPTS, COMPLETIONS)


def test_without_a_longest_response_trajectory_entropy_asks_for_one(tmp_path):
    trainer = train(tmp_path, [trajectory_entropy()], max_steps=1)
    asked, told = trajectory_entropy().bind(trainer), trajectory_entropy(4).bind(trainer)
    columns = dict(
        prompts=["a"] * 16, completions=["b"] * 16, completion_ids=trainer._entrostat_generation.latest.completion_ids
    )
    by_eight = asked(**columns)
    assert told(**columns) == pytest.approx([2 * value for value in by_eight])
    trainer.max_completion_length = None
    assert told(**columns) == pytest.approx([2 * value for value in by_eight])
    with pytest.raises(ValueError, match="give max_length"):
        asked(**columns)


def test_conversations_are_measured_from_the_ids_of_their_template(tmp_path):
    tokenizer = tiny_trl.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} t {% endfor %}"
    heard = []

    class Kept(PolicyReward):
        def __call__(self, *args, completion_ids, **kwargs):
            heard.append((completion_ids, super().__call__(*args, completion_ids=completion_ids, **kwargs)))
            return heard[-1][1]

    made = token_entropy()
    trainer = tiny_trl.trainer(tmp_path, max_steps=1, reward_funcs=[Kept(made.__name__, made._score)])
    trainer.processing_class = trainer._tokenizer = tokenizer
    trainer.train_dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": "b c"}]] * 16})
    bind_rewards(trainer)
    start = tiny_trl.model()
    trainer.train()

    prompt = tokenizer("b c t")["input_ids"]
    for ids, reward in zip(*heard[0]):
        expected = [h for h, _ in by_oracle(start, prompt, ids, 0.9)]
        assert reward == pytest.approx(-sum(expected) / len(ids), abs=2e-5)
