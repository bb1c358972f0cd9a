"""The supervised beginning: a small transformer learns to add, then to be right about a third of the time.

The first number of an answer is free, so its loss is noise to whoever is learning to add: the opening leaves it out,
and has right answers only. Without it one seed in three learns the sum within these steps.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from entrostat.lab.many_answers import task

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

STEPS = 600
OPENING_SHARE = 2 / 3
BATCH = 128
LEARNING_RATE = 2e-3


def make_model(
    tokenizer: "PreTrainedTokenizerFast", seed: int = 0, *, layers: int = 3, width: int = 96
) -> "Qwen3ForCausalLM":
    """Qwen3 with random weights from ``seed``; as it stands, 0.3 million parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=width // 4,
        max_position_embeddings=32,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def teach(
    model: "Qwen3ForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    *,
    steps: int = STEPS,
    seed: int = 0,
    on_progress: Callable[[int, float], None] | None = None,
) -> None:
    """Train ``model`` in place on ``steps`` batches of prompt and answer.

    In the opening two thirds the answers are right and the loss is on their second number; after that ``WRONG_SHARE``
    of them are wrong and the loss is on the whole answer.

    Args:
        model: as ``make_model`` gives it.
        tokenizer: as ``task.make_tokenizer`` gives it.
        steps: batches of 128.
        seed: of the teaching set.
        on_progress: called with the number of the step and its loss (nats).
    """
    import torch

    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=max(steps, 2))
    model.train()
    for step in range(1, steps + 1):
        ids, labels = _opening_batch(tokenizer, draw) if step <= OPENING_SHARE * steps else _batch(tokenizer, draw)
        loss = model(input_ids=ids, attention_mask=ids != tokenizer.pad_token_id, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if on_progress is not None and (step % 10 == 0 or step == steps):
            on_progress(step, float(loss.detach()))


def _opening_batch(tokenizer: "PreTrainedTokenizerFast", draw: random.Random) -> tuple["Tensor", "Tensor"]:
    ids, labels = _batch(tokenizer, draw, wrong_share=0.0)
    is_second = (labels == tokenizer.convert_tokens_to_ids("+")).cumsum(1) > 0
    return ids, labels.masked_fill(~is_second, -100)


def _batch(
    tokenizer: "PreTrainedTokenizerFast", draw: random.Random, wrong_share: float = task.WRONG_SHARE
) -> tuple["Tensor", "Tensor"]:
    """``ids`` [128, L] padded on the right and ``labels`` [128, L], -100 on prompt and padding."""
    import torch

    rows = []
    for _ in range(BATCH):
        prompt, answer = task.teaching_pair(draw, wrong_share)
        rows.append((tokenizer.encode(prompt), [*tokenizer.encode(answer), tokenizer.eos_token_id]))
    width = max(len(p) + len(a) for p, a in rows)
    ids = torch.full((BATCH, width), tokenizer.pad_token_id)
    labels = torch.full((BATCH, width), -100)
    for i, (prompt_ids, answer_ids) in enumerate(rows):
        end = len(prompt_ids) + len(answer_ids)
        ids[i, :end] = torch.tensor(prompt_ids + answer_ids)
        labels[i, len(prompt_ids) : end] = torch.tensor(answer_ids)
    return ids, labels
