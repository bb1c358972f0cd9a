"""The one policy loss: advantages -> ratio -> clipping -> token mask -> penalties -> aggregation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from entrostat.interventions.chain import in_order
from entrostat.interventions.transform import State, Tokens, Transform

Aggregation = Literal["token", "response"]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss and what it says of the update.

    Args:
        loss: scalar, with gradient.
        clip_fraction_low: share of tokens with A < 0 and a ratio below the clip range.
        clip_fraction_high: share of tokens with A > 0 and a ratio above it.
        states: what each transform wants back at the next step, by name.
    """

    loss: Tensor
    clip_fraction_low: Tensor
    clip_fraction_high: Tensor
    states: dict[str, State]


def policy_loss(
    logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    old_logp: Tensor | None = None,
    transforms: Sequence[Transform] = (),
    states: dict[str, State] | None = None,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    aggregation: Aggregation = "token",
    entropy: Tensor | None = None,
    top_logps: Tensor | None = None,
    is_top1: Tensor | None = None,
    rewards: Tensor | None = None,
    groups: Tensor | None = None,
) -> PolicyLoss:
    """The clipped surrogate of PPO (Schulman et al. 2017, Eq. 7) on tokens, with whatever is switched on.

    Args:
        logp: [B, T] log-probs of the sampled tokens under the policy being trained, with gradient.
        advantages: [B] or [B, T].
        mask: [B, T] non-zero on response tokens.
        old_logp: [B, T] under the policy that sampled; None: it was this very policy, so every ratio is 1.
        transforms: the methods that are on, in any order.
        states: what ``PolicyLoss.states`` gave at the last step.
        eps_low: lower clip range.
        eps_high: upper clip range.
        aggregation: ``token``: mean over all valid tokens; ``response``: over a response's tokens, then responses.
        entropy: [B, T]; top_logps: [B, T, n]; is_top1: [B, T]; rewards: [B]; groups: [B]: for methods that need them.

    Raises:
        ValueError: shapes that do not fit, a method whose needs are not there, or no valid token.
    """
    if logp.shape != mask.shape:
        raise ValueError(f"logp {tuple(logp.shape)} and mask {tuple(mask.shape)} must agree in [B, T]")
    old = logp.detach() if old_logp is None else old_logp
    tokens = Tokens(
        logp=logp,
        log_ratio=logp - old,
        advantage=_per_token(advantages, mask),
        mask=mask.to(logp.dtype),
        eps_low=eps_low,
        eps_high=eps_high,
        penalty=torch.zeros_like(logp),
        entropy=entropy,
        top_logps=top_logps,
        is_top1=is_top1,
        rewards=rewards,
        groups=groups,
    )
    tokens, kept = _applied(tokens, in_order(transforms), states or {})
    ratio = tokens.log_ratio.exp()
    clipped = ratio.clamp(1 - tokens.eps_low, 1 + tokens.eps_high)
    surrogate = torch.minimum(ratio * tokens.advantage, clipped * tokens.advantage)
    # Padding may hold anything, NaN included: it is set aside, not multiplied away.
    per_token = torch.where(mask != 0, tokens.penalty - surrogate * tokens.mask, 0.0)
    low = (ratio < 1 - tokens.eps_low) & (tokens.advantage < 0)
    high = (ratio > 1 + tokens.eps_high) & (tokens.advantage > 0)
    valid = mask != 0
    count = valid.sum().clamp(min=1)
    return PolicyLoss(
        loss=_aggregated(per_token, valid, aggregation),
        clip_fraction_low=(low & valid).sum() / count,
        clip_fraction_high=(high & valid).sum() / count,
        states=kept,
    )


def _per_token(advantages: Tensor, mask: Tensor) -> Tensor:
    if advantages.shape == mask.shape[:1]:
        return advantages.unsqueeze(1).expand(mask.shape)
    if advantages.shape == mask.shape:
        return advantages
    raise ValueError(f"advantages {tuple(advantages.shape)} must be [B] or [B, T], with [B, T] = {tuple(mask.shape)}")


def _applied(
    tokens: Tokens, transforms: Sequence[Transform], states: dict[str, State]
) -> tuple[Tokens, dict[str, State]]:
    kept: dict[str, State] = {}
    for transform in transforms:
        if missing := [name for name in transform.needs if getattr(tokens, name) is None]:
            raise ValueError(f"{transform.name} needs {', '.join(missing)}: give it to policy_loss")
        tokens, kept[transform.name] = transform.apply(tokens, states.get(transform.name))
    return tokens, kept


def _aggregated(per_token: Tensor, valid: Tensor, aggregation: Aggregation) -> Tensor:
    if aggregation == "token":
        return per_token.sum() / valid.sum().clamp(min=1)
    if aggregation == "response":
        return (per_token.sum(1) / valid.sum(1).clamp(min=1)).mean()
    raise ValueError(f"aggregation {aggregation!r}: token or response")
