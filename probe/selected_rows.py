"""Products of a few chosen rows with the whole vocabulary, with gradients: candidates' log-probs, KL to a reference.

The rows are chosen first and only their logits ever exist: [k, V], in tiles of rows that the backward makes anew.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from entrostat.probe.token_stats import tempered

ROW_TILE = 512
"""Rows whose logits exist at once: 512 x 152k x 4 bytes are 0.3 GB."""


@dataclass(frozen=True, slots=True)
class Head:
    """A model's output head, and what turns its products into the logits of the policy that samples.

    Args:
        weight: [V, d].
        bias: [V] or None.
        temperature: of the sampling.
        softcap: final soft-cap of the logits (Gemma).
        logit_scale: factor of the logits (Cohere, Granite).
        dtype: in which the product is taken; the rest is float32, or float64 for float64.
    """

    weight: Tensor
    bias: Tensor | None = None
    temperature: float = 1.0
    softcap: float | None = None
    logit_scale: float | None = None
    dtype: torch.dtype | None = None

    def logps(self, hidden: Tensor) -> Tensor:
        """[k, V] log-probs of the rows ``hidden`` [k, d]."""
        return self._logits(hidden, self.weight, self.bias).log_softmax(-1)

    def _logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dtype = self.dtype or weight.dtype
        # Autocast would take a float32 product in bfloat16.
        with torch.autocast(hidden.device.type, enabled=False):
            raw = torch.nn.functional.linear(
                hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
            )
        raw = raw if raw.dtype == torch.float64 else raw.float()
        heat = torch.full((1, 1), self.temperature, dtype=raw.dtype, device=raw.device)
        return tempered(raw, heat, self.softcap, self.logit_scale)


def candidate_logps(hidden: Tensor, head: Head, n: int) -> Tensor:
    """Log-probs [k, n] of the ``n`` most likely candidates of each row, most likely first, with gradient.

    Args:
        hidden: [k, d] hidden states, with gradient.
        head: the policy's.
        n: number of candidates, at most V.
    """

    def tile(rows: Tensor) -> Tensor:
        logps = head.logps(rows)
        # Ties to the lower id, as in TokenStats.
        ids = logps.detach().sort(dim=1, descending=True, stable=True).indices[:, :n]
        return logps.gather(1, ids)

    return _tiled(tile, (hidden,), empty=hidden.new_zeros(0, n, dtype=torch.float32))


def kl_to_reference(
    hidden: Tensor, head: Head, reference_hidden: Tensor, reference_head: Head, *, forward: bool = False
) -> Tensor:
    """KL(policy || reference) [k] over the whole vocabulary, nats, with gradient to the policy alone (SCOPE Eq. 12).

    Args:
        hidden: [k, d] of the policy, with gradient.
        head: the policy's.
        reference_hidden: [k, d'] of the reference.
        reference_head: the reference's.
        forward: KL(reference || policy) instead: the policy is to cover what the reference does.
    """

    def tile(rows: Tensor, reference_rows: Tensor) -> Tensor:
        with torch.no_grad():
            other = reference_head.logps(reference_rows)
        logps = head.logps(rows)
        other = other.to(logps.device)  # the reference may live elsewhere, on the CPU
        of, to = (other, logps) if forward else (logps, other)
        # A candidate that is masked out counts 0: before the product, or its gradient would be 0 x inf.
        gap = torch.where(of == -torch.inf, 0.0, of - to)
        return (of.exp() * gap).sum(1)

    return _tiled(tile, (hidden, reference_hidden.detach()), empty=hidden.new_zeros(0, dtype=torch.float32))


def _tiled(tile: Callable[..., Tensor], rows: tuple[Tensor, ...], empty: Tensor) -> Tensor:
    """``tile`` over blocks of rows; what a block needs for its backward is made anew there."""
    num_rows = rows[0].shape[0]
    if num_rows == 0:
        return empty + rows[0].sum() * 0  # still a part of the graph: every rank must have the same one
    parts = []
    for first in range(0, num_rows, ROW_TILE):
        block = tuple(r[first : first + ROW_TILE] for r in rows)
        if torch.is_grad_enabled() and num_rows > ROW_TILE:
            parts.append(checkpoint(tile, *block, use_reentrant=False))
        else:
            parts.append(tile(*block))
    return torch.cat(parts)
