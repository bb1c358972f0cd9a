"""A tiny policy in verl's real FSDP2 engine on the CPU, batches as verl's trainer sends them, and updates of it."""

import os
from dataclasses import dataclass
from functools import partial

import torch
from tensordict import TensorDict
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, PolicyLossConfig
from verl.workers.engine import EngineRegistry
from verl.workers.utils.losses import ppo_loss

VOCABULARY, NUM_PROMPTS, GROUP = 53, 3, 4
NUM_RESPONSES = NUM_PROMPTS * GROUP
TEMPERATURE = 0.7
SETTINGS = {
    "temperature": TEMPERATURE, "calculate_entropy": False, "micro_batch_size_per_gpu": 4, "use_dynamic_bsz": False,
    "use_remove_padding": False, "use_fused_kernels": False,
}  # fmt: skip


def save_policy(path, seed=0):
    """Write a two-layer Qwen2 with random weights to ``path``."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.5, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(path)
    return str(path)


def join_one_process(path):
    """torch.distributed with this process alone, unless a launcher has set up more."""
    if not torch.distributed.is_initialized():
        if "RANK" in os.environ:
            torch.distributed.init_process_group("gloo")
        else:
            torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)


def configs(path, *, lr=1e-2, use_remove_padding=False, param_dtype="fp32", model_options=None, **engine_options):
    """verl's settings of model, engine and optimizer: FSDP2."""
    model = HFModelConfig(
        path=path, load_tokenizer=False, use_remove_padding=use_remove_padding,
        override_config={"attn_implementation": "sdpa"},
        **({"enable_gradient_checkpointing": False} | (model_options or {})),
    )  # fmt: skip
    engine = FSDPEngineConfig(
        strategy="fsdp2", mixed_precision={"param_dtype": param_dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_torch_compile=False, use_dynamic_bsz=False, micro_batch_size_per_gpu=4, **engine_options,
    )  # fmt: skip
    return model, engine, FSDPOptimizerConfig(lr=lr, total_training_steps=100, weight_decay=0.0, clip_grad=1e9)


def build(path, **options):
    """verl's own engine of the policy at ``path``; options as in ``configs``."""
    model, engine, optimizer = configs(path, **options)
    made = EngineRegistry.new(
        model_type="language_model", backend="fsdp2", model_config=model, engine_config=engine,
        optimizer_config=optimizer, checkpoint_config=CheckpointConfig(),
    )  # fmt: skip
    made.initialize()
    return made


def actor_config(loss_mode="vanilla", **options):
    settings = {
        "strategy": "fsdp2", "rollout_n": GROUP, "ppo_micro_batch_size_per_gpu": 4, "clip_ratio_high": 0.28,
        "policy_loss": PolicyLossConfig(loss_mode=loss_mode), **options,
    }  # fmt: skip
    return ActorConfig(**settings)


def jagged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


@dataclass
class Sequences:
    """Plain lists: per response, what ``data`` holds packed."""

    prompts: list
    responses: list
    masks: list
    old: list
    rollout: list
    advantages: list
    scores: list
    uids: list


def sequences(seed=0, num=NUM_RESPONSES):
    """Responses in groups of GROUP, of random lengths; some have tokens that a tool wrote."""
    generator = torch.Generator().manual_seed(seed)

    def ints(low, high, n):
        return torch.randint(low, high, (n,), generator=generator)

    found = Sequences([], [], [], [], [], [], [], [])
    for i in range(num):
        if i % GROUP == 0:
            prompt = ints(0, VOCABULARY, int(ints(2, 6, 1)))
        length = int(ints(3, 12, 1))
        mask = torch.ones(length, dtype=torch.int64)
        if i % 3 == 0:
            mask[1] = 0
        old = -3.0 + 0.5 * torch.randn(length, generator=generator)
        score = float(ints(0, 2, 1))
        found.prompts.append(prompt)
        found.responses.append(ints(0, VOCABULARY, length))
        found.masks.append(mask)
        found.old.append(old)
        found.rollout.append(old + 0.05 * torch.randn(length, generator=generator))
        found.advantages.append(torch.randn((), generator=generator) * mask)
        found.scores.append(torch.nn.functional.pad(torch.tensor([score]), (length - 1, 0)))
        found.uids.append(f"prompt-{seed}-{i // GROUP}")
    return found


def taken(seqs, rows):
    """Some of the responses."""
    return Sequences(*([getattr(seqs, name)[i] for i in rows] for name in Sequences.__dataclass_fields__))


def logits_of(model, seqs, i):
    """[T, V] logits of response ``i``, divided by the temperature, from a plain transformers model, nothing packed."""
    prompt, response = seqs.prompts[i], seqs.responses[i]
    logits = model(input_ids=torch.cat([prompt, response]).unsqueeze(0)).logits[0]
    return logits[len(prompt) - 1 : -1] / TEMPERATURE


@torch.no_grad()
def near(model, seqs, seed=7, spread=0.3):
    """``seqs`` with old log-probs that are the model's, a little off, so that about a quarter lie beyond the clip."""
    generator = torch.Generator().manual_seed(seed)
    for i, response in enumerate(seqs.responses):
        logp = logits_of(model, seqs, i).log_softmax(-1).gather(1, response.unsqueeze(1)).squeeze(1)
        seqs.old[i] = (logp + spread * torch.randn(len(logp), generator=generator)).float()
        seqs.rollout[i] = seqs.old[i] + 0.05 * torch.randn(len(logp), generator=generator)
    return seqs


def as_data(seqs, **settings):
    """The TensorDict that verl's trainer (v1) hands to ``train_batch``: jagged tensors and settings."""
    fields = {
        "prompts": jagged(seqs.prompts),
        "responses": jagged(seqs.responses),
        "response_mask": jagged(seqs.masks),
        "loss_mask": jagged(seqs.masks),
        "input_ids": jagged([torch.cat(both) for both in zip(seqs.prompts, seqs.responses, strict=True)]),
        "position_ids": jagged(
            [torch.arange(len(p) + len(r)) for p, r in zip(seqs.prompts, seqs.responses, strict=True)]
        ),
        "old_log_probs": jagged(seqs.old),
        "rollout_log_probs": jagged(seqs.rollout),
        "advantages": jagged(seqs.advantages),
        "rm_scores": jagged(seqs.scores),
    }
    data = TensorDict(fields, batch_size=[len(seqs.prompts)])
    tu.assign_non_tensor(data, uid=seqs.uids, **(SETTINGS | {"global_batch_size": len(seqs.prompts)} | settings))
    return data


def numbers(metrics):
    """verl's metrics as lists of floats."""
    found = {}
    for name, values in metrics.items():
        values = values if isinstance(values, list) else [values]
        found[name] = [float(v) for x in values for v in getattr(x, "values", [x])]
    return found


@dataclass
class Update:
    """What one optimizer step did: verl's losses and metrics, and every gradient before clipping."""

    losses: list
    metrics: dict
    gradients: dict


def update(engine, config, data):
    """One optimizer step as verl's worker makes it."""
    gradients = {}
    own = engine.optimizer_step

    def looking():
        named = engine.module.named_parameters()
        gradients.update({n: p.grad.full_tensor().clone() for n, p in named if p.grad is not None})
        return own()

    engine.optimizer_step = looking
    try:
        with engine.train_mode():
            output = engine.train_batch(data, partial(ppo_loss, config=config))
    finally:
        del engine.optimizer_step
    engine.lr_scheduler_step()
    metrics = numbers(output["metrics"])
    return Update(output["loss"], metrics, gradients)


def weights(engine):
    return {name: value.full_tensor().clone() for name, value in engine.module.state_dict().items()}


def as_padded_data(seqs, **settings):
    """As the trainer before v1 sends it: padded tensors, made "no padding" by verl's own function."""
    from verl.workers.utils.padding import left_right_2_no_padding

    def left(rows):
        width = max(len(r) for r in rows)
        return torch.stack([torch.nn.functional.pad(r, (width - len(r), 0)) for r in rows])

    def right(rows):
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    attention = torch.cat(
        [left([torch.ones_like(p) for p in seqs.prompts]), right([torch.ones_like(r) for r in seqs.responses])], dim=1
    )
    fields = {
        "prompts": left(seqs.prompts), "responses": right(seqs.responses), "attention_mask": attention,
        "input_ids": torch.cat([left(seqs.prompts), right(seqs.responses)], dim=1),
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0), "response_mask": right(seqs.masks),
        "old_log_probs": right(seqs.old), "rollout_log_probs": right(seqs.rollout),
        "advantages": right(seqs.advantages), "token_level_scores": right(seqs.scores),
    }  # fmt: skip
    data = TensorDict(fields, batch_size=[len(seqs.prompts)])
    data = left_right_2_no_padding(data)
    tu.assign_non_tensor(data, uid=seqs.uids, **(SETTINGS | {"global_batch_size": len(seqs.prompts)} | settings))
    return data
