"""Which tokens a method acts on: the top share by a score. Nothing is read back to the host."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows [k] of the flattened batch, of which those with ``is_in`` [k] are meant; the others only fill up.

    k depends on the batch's shape alone, so that no number has to come back from the device.
    """

    rows: Tensor
    is_in: Tensor

    def as_mask(self, like: Tensor) -> Tensor:
        """[B, T] bool of the shape of ``like``."""
        flat = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
        return flat.scatter(0, self.rows, self.is_in).view(like.shape)


def top_share(
    score: Tensor,
    eligible: Tensor,
    share: float,
    *,
    of: Tensor | None = None,
    threshold: float | None = None,
    at_least_one: bool = True,
) -> Selection:
    """The ``share`` of tokens with the highest scores.

    Args:
        score: [B, T] float.
        eligible: [B, T] bool: tokens that may be taken.
        share: of the tokens in ``of``; the number is rounded down.
        of: [B, T] bool, the tokens that ``share`` counts; None: the eligible ones.
        threshold: where given, every eligible token whose score reaches it, instead of a share of this batch: how a
            selection over the whole step and all ranks is handed down.
        at_least_one: take one token where the share would be none.
    """
    flat_score, flat_eligible = score.detach().reshape(-1), eligible.reshape(-1)
    counted = flat_eligible if of is None else of.reshape(-1)
    if threshold is not None:
        rows = torch.arange(flat_score.numel(), device=score.device)
        return Selection(rows, flat_eligible & (flat_score >= threshold))
    most = max(1, min(flat_score.numel(), int(share * flat_score.numel()) + 1))
    ranked = flat_score.masked_fill(~flat_eligible, -torch.inf).sort(descending=True, stable=True).indices[:most]
    wanted = (share * counted.sum()).floor()
    if at_least_one:
        wanted = wanted.clamp(min=1)
    place = torch.arange(ranked.numel(), device=score.device)
    return Selection(ranked, flat_eligible[ranked] & (place < wanted))


def token_covariance(logp: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """(logp - mean logp)(A - mean A) of each token [B, T], centred over the batch (Entropy Mechanism Eq. 8)."""
    weight = (mask != 0).to(logp.dtype)
    count = weight.sum().clamp(min=1)
    x = logp.detach()
    return (x - (x * weight).sum() / count) * (advantage - (advantage * weight).sum() / count)


def scope_score(logp: Tensor, advantage: Tensor) -> Tensor:
    """p(1-p) max(A, 0) of each token [B, T] (SCOPE Eq. 11), without gradient."""
    p = logp.detach().exp()
    return p * (1 - p) * advantage.clamp(min=0)
