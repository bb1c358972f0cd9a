"""The advantage estimators that the paper compares: rewards [M, G] of M groups -> advantages [M, G].

**Decision**: standard deviations are those of the group itself (no n - 1), as in Over-sharpening Thm 2.3.
"""

from collections.abc import Callable

import torch
from torch import Tensor

EPS = 1e-6
Estimator = Callable[[Tensor], Tensor]


def raw(rewards: Tensor) -> Tensor:
    """The reward itself: REINFORCE without a baseline."""
    return rewards


def mean_shifted(rewards: Tensor) -> Tensor:
    """Minus the group's mean: Dr. GRPO (Liu et al. 2025)."""
    return rewards - rewards.mean(1, keepdim=True)


def normalised(rewards: Tensor) -> Tensor:
    """Minus the group's mean, over its standard deviation: GRPO (Shao et al. 2024). 0 where all rewards are equal."""
    return mean_shifted(rewards) / (rewards.std(1, keepdim=True, correction=0) + EPS)


def rloo(rewards: Tensor) -> Tensor:
    """Minus the mean of the others: RLOO (Kool et al. 2019). It is G / (G - 1) times ``mean_shifted``."""
    size = rewards.shape[1]
    return rewards - (rewards.sum(1, keepdim=True) - rewards) / (size - 1)


def reinforce_pp(rewards: Tensor) -> Tensor:
    """Reinforce++ with baseline (Hu et al. 2025): minus the group's mean, then whitened over the whole batch.

    One prompt a step makes the batch the group, so here it is ``normalised`` in other words.
    """
    centred = mean_shifted(rewards)
    spread = (centred.square().mean(1, keepdim=True) - centred.mean(1, keepdim=True).square()).clamp(min=0)
    return (centred - centred.mean(1, keepdim=True)) / (torch.sqrt(spread) + EPS)


ESTIMATORS: dict[str, Estimator] = {
    "raw": raw,
    "mean-shifted": mean_shifted,
    "normalised": normalised,
    "RLOO": rloo,
    "Reinforce++": reinforce_pp,
}
