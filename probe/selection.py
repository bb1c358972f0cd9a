"""Which tokens of a micro-batch are looked at closely: part by score, part at random, without waiting for the device.

The rows taken by score are certain (probability 1); the rest of the budget is a simple random sample of the remaining
valid tokens. So sums over the micro-batch are estimated without bias by weighting each row with 1 / probability
(Horvitz and Thompson, 1952), and the strata give the standard error.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

UNIFORM, SCOPE, COV, ENTROPY = 1, 2, 4, 8
"""Bits of a row's reasons; 0 is a row that no budget had to choose."""
NUM_REASONS = 16

_SHARE_BY_SCORE = 0.5


@dataclass(frozen=True, slots=True)
class Scores:
    """What makes a token interesting; each [N], any of them absent where there are no advantages."""

    entropy: Tensor
    scope: Tensor | None = None
    cov: Tensor | None = None


def select(scores: Scores, valid: Tensor, budget: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Choose ``min(budget, N)`` rows.

    Args:
        scores: each [N] float; higher is kept first.
        valid: [N] bool; invalid rows are taken only when nothing else is left, and the caller drops them.
        budget: how many rows to take.
        generator: of the tensors' device. Never the trainer's own: its draws must not change.

    Returns:
        ``index`` [k] int64 and ``reason`` [k] uint8, a sum of the bits above. No value is read back to the host.
    """
    num_rows = valid.numel()
    reason = torch.zeros(num_rows, dtype=torch.uint8, device=valid.device)
    given = [(SCOPE, scores.scope), (COV, scores.cov), (ENTROPY, scores.entropy)]
    present = [(bit, score) for bit, score in given if score is not None]
    each = int(budget * _SHARE_BY_SCORE) // len(present)
    for bit, score in present:
        if each:
            ranked = torch.where(valid, score.detach().float(), -torch.inf).nan_to_num(nan=-torch.inf)
            top = ranked.topk(min(each, num_rows), sorted=False).indices
            reason.index_add_(0, top, torch.full_like(top, bit, dtype=torch.uint8))
    draw = torch.rand(num_rows, device=valid.device, generator=generator)
    # Certain rows first, then the random ones in the order of their draw, then padding.
    priority = torch.where(valid, torch.where(reason > 0, draw + 1, draw), draw - 2)
    index = priority.topk(min(budget, num_rows), sorted=False).indices
    chosen = reason[index]
    return index, torch.where(chosen > 0, chosen, torch.full_like(chosen, UNIFORM))


def reason_name(bits: int) -> str:
    """The name under which a row's reasons are stored: the first of scope, cov, entropy, uniform, all."""
    for bit, name in ((SCOPE, "scope"), (COV, "cov"), (ENTROPY, "entropy"), (UNIFORM, "uniform")):
        if bits & bit:
            return name
    return "all"
