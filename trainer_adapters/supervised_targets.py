"""What a batch of supervised training is held to: the token that each position predicts, and the document it is of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from entrostat.probe.token_stats import IGNORED


@dataclass(frozen=True, slots=True)
class Targets:
    """By the position that predicts, as the logits are: column t of ``ids`` is the token after column t.

    Args:
        ids: [B, L] int64, ``IGNORED`` where the loss has no target.
        document: [B, L] int64, the number within its row of the document that the target belongs to.
    """

    ids: Tensor
    document: Tensor


def targets_of(inputs: Mapping[str, Any], num_positions: int) -> Targets | None:
    """The targets of a batch, shifted as the loss shifts them; None where the batch has no labels that fit.

    Args:
        inputs: ``labels`` [B, K], or ``shift_labels`` [B, K] where the collator has shifted them; ``position_ids`` of
            the same shape, where they restart with each document that a row was packed from.
        num_positions: L of the model's output. Larger than K under prompt learning, which puts tokens before the row.
    """
    shifted, labels = inputs.get("shift_labels"), inputs.get("labels")
    given = shifted if shifted is not None else labels
    if given is None or given.ndim != 2 or given.shape[1] > num_positions:
        return None
    before = num_positions - given.shape[1]
    ids = pad(given, (before, 0), value=IGNORED)
    document = pad(_documents(inputs.get("position_ids"), given), (before, 0))
    if shifted is None:
        ids, document = (pad(ids, (0, 1), value=IGNORED)[:, 1:], pad(document, (0, 1))[:, 1:])
    return Targets(ids, document)


def _documents(position_ids: Any, like: Tensor) -> Tensor:
    """Number of each token's document in its row, [B, K]: a new one begins where positions do not go on by one.

    So does transformers tell packed rows when it makes their attention mask (``find_packed_sequence_indices``).
    """
    if not isinstance(position_ids, Tensor) or position_ids.ndim != 2 or position_ids.shape[1] != like.shape[1]:
        return torch.zeros_like(like)
    goes_on = position_ids.diff(dim=1) == 1
    begins: Tensor = pad(~goes_on, (1, 0), value=False)
    return begins.long().cumsum(dim=1).expand(like.shape)
