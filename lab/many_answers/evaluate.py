"""How good and how various a policy is: fresh samples for every prompt."""

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

from entrostat.lab.many_answers import task
from entrostat.lab.many_answers.grpo import MAX_COMPLETION

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Means over all prompts.

    Args:
        pass1: probability that a sample is right.
        pass_at: k -> unbiased probability that one of k samples is right.
        distinct_right: different right answers among a prompt's samples.
        entropy: of the next-token distribution over the sampled tokens, nats.
    """

    pass1: float
    pass_at: dict[int, float]
    distinct_right: float
    entropy: float


def evaluate(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", *, samples_per_prompt: int = 32, seed: int = 0
) -> Evaluation:
    """Sample every prompt; the global random state is left as it was found."""
    import torch

    was_training = model.training
    model.eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        answers, entropy = _sample(model, tokenizer, samples_per_prompt)
    model.train(was_training)
    right = [[a for a in group if task.is_right(p, a)] for p, group in zip(task.prompts(), answers, strict=True)]
    counts = [len(group) for group in right]
    sizes = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples_per_prompt]
    pass_at = {
        k: sum(1 - comb(samples_per_prompt - c, k) / comb(samples_per_prompt, k) for c in counts) / len(counts)
        for k in sizes
    }
    distinct = sum(len(set(group)) for group in right) / len(right)
    return Evaluation(pass_at[1], pass_at, distinct, entropy)


def _sample(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", samples_per_prompt: int
) -> tuple[list[list[str]], float]:
    """Answers by prompt, and the mean entropy (nats) of the distributions they were drawn from."""
    import torch

    prompts = [p for p in task.prompts() for _ in range(samples_per_prompt)]
    ids = torch.tensor([tokenizer.encode(p) for p in prompts])  # every prompt has three characters
    alive = torch.ones(len(prompts), dtype=torch.bool)
    drawn, total, count = [], 0.0, 0
    cache, step_ids = None, ids
    for _ in range(MAX_COMPLETION):
        out = model(input_ids=step_ids, past_key_values=cache, use_cache=True)
        cache, logps = out.past_key_values, out.logits[:, -1].log_softmax(-1)
        token_entropy = -(logps.exp() * logps).sum(-1)
        total, count = total + float(token_entropy[alive].sum()), count + int(alive.sum())
        token = torch.multinomial(logps.exp(), 1).squeeze(1)
        token = torch.where(alive, token, tokenizer.pad_token_id)
        drawn.append(token)
        alive &= token != tokenizer.eos_token_id
        step_ids = token.unsqueeze(1)
        if not alive.any():
            break
    texts = tokenizer.batch_decode(torch.stack(drawn, 1), skip_special_tokens=True)
    grouped = [texts[i : i + samples_per_prompt] for i in range(0, len(texts), samples_per_prompt)]
    return grouped, total / max(count, 1)
