"""The four labels and their fixed embeddings (Over-sharpening Sec. 2.4)."""

import torch
from torch import Tensor

LABELS = ("Cat", "Persian", "Dog", "Siamese")
CAT, PERSIAN, DOG, SIAMESE = range(4)

PERSIAN_INPUT = (0.75, 0.5, 0.25, 0.1)
SIAMESE_INPUTS = {"high": (0.25, 0.5, 0.75, 0.1), "mid": (0.1, 0.5, 0.9, 0.1), "low": (0.0, 0.5, 1.0, 0.1)}
"""The held-out input by its similarity to the Persian one. A policy that is linear in its input never meets the
embeddings of Cat and Dog: only Persian is shown, only Siamese is asked for."""


def inputs() -> Tensor:
    """[4, 4] float64: a row each for Persian and for Siamese at high, mid and low similarity."""
    return torch.tensor([PERSIAN_INPUT, *SIAMESE_INPUTS.values()], dtype=torch.float64)


def logits(weights: Tensor, given: Tensor) -> Tensor:
    """f(q, o) = w_o . e_q of M linear policies.

    Args:
        weights: [M, 4, 4] a row a label.
        given: [Q, 4] embeddings of inputs.

    Returns:
        [M, Q, 4], a column a label.
    """
    return given @ weights.transpose(1, 2)
