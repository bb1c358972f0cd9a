"""The tree: paths of three actions, six of them rewarded; a policy has four logits at each of 21 prefixes."""

import itertools

import torch
from torch import Tensor

ACTIONS = "ABCD"
HORIZON = 3
REWARDED = ("ACD", "ACB", "BDC", "BDA", "CAB", "DBA")
PATHS = tuple("".join(path) for path in itertools.product(ACTIONS, repeat=HORIZON))
NUM_STATES = sum(len(ACTIONS) ** depth for depth in range(HORIZON))

IS_REWARDED = torch.tensor([path in REWARDED for path in PATHS])
"""[64] by path."""


def state(prefix: str) -> int:
    """The number of a prefix of zero to two actions: the root is 0, then A to D, then AA to DD."""
    number = 0
    for action in prefix:
        number = number * len(ACTIONS) + ACTIONS.index(action) + 1
    return number


STATES = torch.tensor([[state(path[:t]) for t in range(HORIZON)] for path in PATHS])
"""[64, 3] the states a path goes through."""

CHOICES = torch.tensor([[ACTIONS.index(action) for action in path] for path in PATHS])
"""[64, 3] what it does there."""


def path_probs(logits: Tensor) -> Tensor:
    """[..., 64] the probability of every path under policies with ``logits`` [..., 21, 4]."""
    logp = logits.log_softmax(-1)
    return logp[..., STATES, CHOICES].sum(-1).exp()


def sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """[M, G] paths by number, from M policies' ``logits`` [M, 21, 4] by inversion of ``uniform`` [M, G]."""
    cumulative = path_probs(logits).cumsum(1).contiguous()
    return torch.searchsorted(cumulative, uniform.contiguous()).clamp(max=len(PATHS) - 1)
