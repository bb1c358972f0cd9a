"""Tiles of the logits that a head makes of hidden states: [rows, columns] at a time, in the inputs' dtype."""

import torch
from torch import Tensor


def head_tile(hidden: Tensor, head_weight: Tensor, bias: Tensor | None) -> Tensor:
    """[k, d] x [c, d] -> [k, c], the policy's own logits: rounded before the bias, as ``token_stats`` does it."""
    with torch.autocast(hidden.device.type, enabled=False):  # autocast would round a float32 product to bfloat16
        product = hidden @ head_weight.T
        return product if bias is None else product.add_(bias.to(product.dtype))


def check_head(hidden: Tensor, head_weight: Tensor, bias: Tensor | None) -> None:
    """Raise ValueError for shapes or dtypes that do not fit, by name."""
    if hidden.ndim != 2 or head_weight.ndim != 2 or hidden.shape[1] != head_weight.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)} and head_weight {tuple(head_weight.shape)} must be [N, d] and [V, d]"
        )
    if hidden.dtype != head_weight.dtype:
        raise ValueError(f"hidden is {hidden.dtype}, head_weight {head_weight.dtype}: cast one to the other")
    if bias is not None and bias.shape != head_weight.shape[:1]:
        raise ValueError(f"bias {tuple(bias.shape)} must be [V] = {tuple(head_weight.shape[:1])}")
