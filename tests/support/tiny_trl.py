"""A very small model and task that TRL really trains, in a fraction of a second a step, on one CPU thread."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

WORDS = ["<pad>", "<eos>", *"abcdefghijklmnopqrst"]


def tokenizer():
    """Word level, 22 words, space between."""
    model = models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>")
    tok = Tokenizer(model)
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def model(seed=0, **overrides):
    """Qwen2, two layers of 32, random weights from ``seed``."""
    torch.manual_seed(seed)
    settings = dict(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    return Qwen2ForCausalLM(Qwen2Config(**(settings | overrides)))


def reward(completions, **_):
    """The share of the letter 'a': something that can be learned; 1.0 (right) where it comes first."""
    return [1.0 if text.split()[:1] == ["a"] else 0.0 for text in completions]


def dataset():
    return Dataset.from_dict({"prompt": ["b c d", "e f", "g h i j", "k"] * 16})


def trainer(
    folder,
    kind="grpo",
    policy=None,
    callbacks=(),
    eval_dataset=None,
    rollout_func=None,
    reward_funcs=reward,
    **overrides,
):
    """A GRPO or RLOO trainer over the task: 16 completions of at most 8 tokens a step, 4 a prompt."""
    config_class, trainer_class = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}[kind]
    settings = dict(
        output_dir=str(folder), per_device_train_batch_size=16, num_generations=4, max_completion_length=8,
        max_steps=3, learning_rate=1e-3, report_to=[], bf16=False, use_cpu=True, save_strategy="no",
        logging_steps=1, disable_tqdm=True, seed=7, gradient_checkpointing=False, temperature=0.9, beta=0.0,
    )  # fmt: skip
    if policy is None:
        policy = model()
        if overrides.get("beta"):  # TRL loads the reference model by the policy's own name
            policy.save_pretrained(f"{folder}/policy")
            policy = Qwen2ForCausalLM.from_pretrained(f"{folder}/policy")
    return trainer_class(
        model=policy,
        reward_funcs=reward_funcs,
        args=config_class(**(settings | overrides)),
        train_dataset=dataset(),
        eval_dataset=eval_dataset,
        processing_class=tokenizer(),
        callbacks=list(callbacks),
        **({"rollout_func": rollout_func} if rollout_func else {}),
    )
