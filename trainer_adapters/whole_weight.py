"""A weight that is spread over ranks, as a whole: FSDP2 and tensor parallelism (DTensor), DeepSpeed ZeRO-3.

Both ways are collectives: every rank calls, in the same order. So the choice hangs on what the weight is, which is the
same on all ranks, and on nothing else.
"""

import importlib
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def whole(weight: Tensor) -> Tensor:
    """``weight`` detached and whole on this rank; itself, not a copy, where it is whole already.

    Args:
        weight: a parameter, or what a sharded parameter is at the moment: plain while FSDP2 has it unsharded.

    Raises:
        ValueError: a part of it is all there is: ZeRO-3 without DeepSpeed, or FSDP1's flattened pieces.
    """
    if hasattr(weight, "full_tensor"):
        full: Tensor = weight.full_tensor()
        return full.detach()
    if hasattr(weight, "ds_id"):
        return _gathered(weight)
    if weight.numel() == 0:
        raise ValueError(
            "the head's weight is empty on this rank: another rank, or a flat parameter, holds it. Gather it first "
            "(FSDP1: FullyShardedDataParallel.summon_full_params), or give logits in its place"
        )
    return weight.detach()


def _gathered(weight: Any) -> Tensor:
    try:
        deepspeed = importlib.import_module("deepspeed")  # zero is its attribute, no module that can be imported
    except ImportError as error:
        raise ValueError(
            "the head's weight is partitioned by DeepSpeed ZeRO-3 (it has a ds_id), and deepspeed cannot be imported "
            f"here ({error}): gather it yourself, or give logits in its place"
        ) from error
    with deepspeed.zero.GatheredParameters([weight]):
        # A copy: DeepSpeed frees the gathered storage when the block ends.
        found: Tensor = weight.detach().clone()
    return found
