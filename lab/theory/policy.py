"""A softmax policy over a few actions, and tokens sampled from it as the probe would see them."""

import numpy as np
import torch

from entrostat.probe import capture, step, token_stats
from entrostat.probe.step import Floats, Ints, StepData
from entrostat.probe.token_stats import TokenStats


def statistics(logits: Floats, *, kept: int = 1) -> TokenStats:
    """The product's statistics of each action of one softmax [V] as the sampled token: [V] rows, float64.

    Args:
        logits: [V].
        kept: candidates kept, n.
    """
    rows = torch.from_numpy(np.tile(logits, (logits.size, 1)))
    return token_stats.from_logits(rows, torch.arange(logits.size), n=kept, vocab_tile=7)  # several tiles even here


def tokens(logp: Floats, advantage: Floats) -> StepData:
    """N tokens, one a response, on the product's way from the device to a step.

    Args:
        logp: [N] nats.
        advantage: [N].
    """
    column = torch.from_numpy(np.ascontiguousarray(logp, dtype=np.float64)).unsqueeze(1)
    seen = capture.Observed(
        logp=column,
        entropy=torch.zeros_like(column),
        mask=torch.ones_like(column),
        token_ids=torch.zeros_like(column, dtype=torch.int64),
        advantages=torch.from_numpy(np.ascontiguousarray(advantage, dtype=np.float64)),
    )
    random = torch.Generator().manual_seed(0)
    return step.gather([capture.capture(seen, measure=None, measure_all=False, budget=0, generator=random)])


def probabilities(logits: Floats) -> Floats:
    """Softmax [V] of ``logits`` [V]."""
    weights = np.exp(logits - logits.max())
    result: Floats = weights / weights.sum()
    return result


def random_logits(draw: np.random.Generator, size: int) -> Floats:
    """[size] normal logits, of a spread drawn between 0.5 and 4."""
    return draw.normal(size=size) * draw.uniform(0.5, 4.0)


def random_counts(draw: np.random.Generator, size: int) -> Ints:
    """[size] how often each action was sampled, at least once."""
    return 1 + draw.multinomial(20 * size, probabilities(random_logits(draw, size)))
