"""What the examples beside this share. docs/trainers has a page for each."""

import uuid
from typing import Any

import torch.distributed as dist
from torch import Tensor

import entrostat


def open_probe(run: str, **options: Any) -> entrostat.Probe:
    """One probe a rank, all of one run. All ranks call it at the same place, once the process group is there."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return entrostat.Probe(run, **options)
    session = [uuid.uuid4().hex]
    dist.broadcast_object_list(session, src=0)
    return entrostat.Probe(
        run, rank=dist.get_rank(), world_size=dist.get_world_size(), session_id=session[0], **options
    )


def at_responses(logits: Tensor, attention: Tensor, length: int, is_packed: bool) -> Tensor:
    """[B, length, V], those that predict the last ``length`` tokens of each row: made at the position before.

    Args:
        logits: [B, L, V], or packed: [1, N, V] of the N tokens that are not padding.
        attention: [B, L], 0 on padding.
    """
    rows = slice(-length - 1, -1)
    if not is_packed:
        return logits[:, rows]
    place = attention.flatten().cumsum(0).view_as(attention) - 1
    return logits[0][place[:, rows].clamp(min=0)]
