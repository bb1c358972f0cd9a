"""How others came to wrong means: each a function of the micro-batches [(values [B, T], mask [B, T]), ...]."""

import torch


def right(parts):
    """Over all valid tokens of the step."""
    return torch.cat([v[m] for v, m in parts]).mean().item()


def over_padding(parts):
    """Over every position of the padded batch (huggingface/trl#5620)."""
    return torch.cat([v.flatten() for v, _ in parts]).mean().item()


def padding_as_zero(parts):
    """Masked sums over all positions."""
    return sum((v * m).sum() for v, m in parts).item() / sum(v.numel() for v, _ in parts)


def mean_of_micro_batches(parts):
    """Each micro-batch's mean counts the same, whatever its tokens."""
    return torch.stack([v[m].mean() for v, m in parts]).mean().item()


def by_responses(parts):
    """Each micro-batch's mean counts by its responses (verl up to 0.4.0 with dynamic batches, JustRL#5)."""
    rows = sum(len(v) for v, _ in parts)
    return sum(v[m].mean() * len(v) / rows for v, m in parts).item()


def mean_of_responses(parts):
    """Each response's mean counts the same."""
    return torch.cat([(v * m).sum(1) / m.sum(1) for v, m in parts]).mean().item()
