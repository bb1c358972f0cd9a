"""Prompts for the engine, and what transformers says of its responses on the same weights."""

import torch

PROMPTS = [[3, 4, 5], [7], [2 + i % 18 for i in range(20)], [9, 8], [5] * 11, [4, 3, 2, 6]]


def given(prompts=PROMPTS):
    return [{"prompt_token_ids": list(p)} for p in prompts]


@torch.no_grad()
def logits_of(model, prompt, response):
    """[T, V] logits that each of the response's tokens was drawn from, without temperature."""
    return model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].float()


def entropy(logits):
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def responses(rows):
    """(row, prompt, tokens) of each response."""
    for row, prompt in enumerate(rows.prompt.tolist()):
        yield row, rows.prompt_ids[prompt], rows.token_ids[row][rows.mask[row]].tolist()
