"""The one policy loss: advantages -> ratio -> clipping -> token mask -> penalties -> aggregation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from entrostat.interventions.chain import in_order
from entrostat.interventions.transform import GroupFacts, ReferenceKL, State, Tokens, Transform

Aggregation = Literal["token", "response", "fixed"]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss and what it says of the update.

    Args:
        loss: scalar, with gradient.
        ratio: [B, T] detached, as the transforms left it; 1 on padding.
        clip_fraction_low: share of tokens with A < 0 and a ratio below the clip range.
        clip_fraction_high: share of tokens with A > 0 and a ratio above it.
        states: what each transform wants back at the next step, by name.
        counts: what the transforms tell of themselves, by name; scalars.
    """

    loss: Tensor
    ratio: Tensor
    clip_fraction_low: Tensor
    clip_fraction_high: Tensor
    states: dict[str, State]
    counts: Mapping[str, Tensor]


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
    normaliser: float | Tensor | None = None,
    entropy: Tensor | None = None,
    top_logps: Tensor | None = None,
    is_top1: Tensor | None = None,
    reference_kl: ReferenceKL | None = None,
    rewards: Tensor | None = None,
    groups: Tensor | None = None,
    facts: GroupFacts | None = None,
) -> PolicyLoss:
    """The clipped surrogate of PPO (Schulman et al. 2017, Eq. 7) on tokens, with whatever is switched on.

    Args:
        logp: [B, T] log-probs of the sampled tokens under the policy being trained, with gradient.
        advantages: [B] or [B, T].
        mask: [B, T] non-zero on response tokens. Elsewhere the tensors may hold anything, NaN included: it reaches
            neither the loss nor a gradient.
        old_logp: [B, T] under the policy that sampled; None: it was this very policy, so every ratio is 1.
        transforms: the methods that are on, in any order.
        states: what ``PolicyLoss.states`` gave at the last step.
        eps_low: lower clip range.
        eps_high: upper clip range.
        aggregation: ``token``: mean over all valid tokens (DAPO, Eq. 8); ``response``: over a response's tokens, then
            over responses, an empty one counting as 0 (GRPO, Shao et al. 2024, Eq. 3); ``fixed``: sum / normaliser.
        normaliser: for ``fixed``: B x longest response (Dr. GRPO, Liu et al. 2025), or the tokens of the whole step.
        entropy: [B, T]; top_logps: [B, T, n]; is_top1: [B, T]; rewards: [B]; groups: [B]; reference_kl: rows [k] of the
            flattened batch -> their KL to the reference [k]; facts of whole groups: for methods that need them.

    Raises:
        ValueError: shapes that do not fit, a method whose needs are not there, or ``fixed`` without a normaliser.
    """
    tokens = tokens_of(
        logp,
        advantages,
        mask,
        old_logp=old_logp,
        eps_low=eps_low,
        eps_high=eps_high,
        entropy=entropy,
        top_logps=top_logps,
        is_top1=is_top1,
        reference_kl=reference_kl,
        rewards=rewards,
        groups=groups,
        facts=facts,
    )
    valid = mask != 0
    tokens, kept = applied(tokens, in_order(transforms), states or {})
    ratio = tokens.log_ratio.exp()
    clipped = ratio.clamp(1 - tokens.eps_low, 1 + tokens.eps_high)
    surrogate = torch.minimum(ratio * tokens.advantage, clipped * tokens.advantage)
    per_token = _on(valid, tokens.penalty - surrogate * tokens.weight)
    low = (ratio < 1 - tokens.eps_low) & (tokens.advantage < 0)
    high = (ratio > 1 + tokens.eps_high) & (tokens.advantage > 0)
    count = valid.sum().clamp(min=1)
    return PolicyLoss(
        loss=_aggregated(per_token, valid, aggregation, normaliser) + tokens.extra,
        ratio=ratio.detach(),
        clip_fraction_low=(low & valid).sum() / count,
        clip_fraction_high=(high & valid).sum() / count,
        states=kept,
        counts=tokens.counts,
    )


def tokens_of(
    logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    old_logp: Tensor | None = None,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    entropy: Tensor | None = None,
    top_logps: Tensor | None = None,
    is_top1: Tensor | None = None,
    reference_kl: ReferenceKL | None = None,
    rewards: Tensor | None = None,
    groups: Tensor | None = None,
    facts: GroupFacts | None = None,
) -> Tokens:
    """What the transforms start from, with 0 wherever there is no response token; arguments as in ``policy_loss``.

    Raises:
        ValueError: shapes that do not fit.
    """
    _check_shapes(mask, logp=logp, old_logp=old_logp, entropy=entropy, is_top1=is_top1)
    valid = mask != 0
    old = logp.detach() if old_logp is None else old_logp
    advantage = _on(valid, _per_token(advantages, mask))
    return Tokens(
        logp=_on(valid, logp),
        log_ratio=_on(valid, logp - old),
        advantage=advantage,
        mask=valid.to(logp.dtype),
        original_advantage=advantage,
        weight=torch.ones_like(logp),
        eps_low=eps_low,
        eps_high=eps_high,
        penalty=torch.zeros_like(logp),
        extra=torch.zeros((), dtype=logp.dtype, device=logp.device),
        entropy=None if entropy is None else _on(valid, entropy),
        top_logps=None if top_logps is None else _on(valid.unsqueeze(2), top_logps),
        is_top1=is_top1,
        reference_kl=reference_kl,
        rewards=rewards,
        groups=groups,
        facts=facts or GroupFacts(),
    )


def applied(
    tokens: Tokens, transforms: Sequence[Transform], states: Mapping[str, State]
) -> tuple[Tokens, dict[str, State]]:
    """``tokens`` after the transforms, in the order given, and what each wants back at the next step.

    Raises:
        ValueError: a method's needs are not there.
    """
    kept: dict[str, State] = {}
    for transform in transforms:
        if missing := [name for name in transform.needs if getattr(tokens, name) is None]:
            raise ValueError(f"{transform.name} needs {', '.join(missing)}: give it to policy_loss")
        tokens, kept[transform.name] = transform.apply(tokens, states.get(transform.name))
    return tokens, kept


def _on(valid: Tensor, values: Tensor) -> Tensor:
    """``values`` on response tokens, 0 elsewhere. Before exp, not after: 0 x exp's gradient at NaN would be NaN."""
    return torch.where(valid, values, 0.0)


def _check_shapes(mask: Tensor, **given: Tensor | None) -> None:
    # Broadcasting would make a [T] or [B, 1] tensor into a loss of the right shape and the wrong value.
    for name, values in given.items():
        if values is not None and (mask.ndim != 2 or values.shape != mask.shape):
            raise ValueError(f"{name} {tuple(values.shape)} and mask {tuple(mask.shape)} must agree in [B, T]")


def _per_token(advantages: Tensor, mask: Tensor) -> Tensor:
    if advantages.shape == mask.shape[:1]:
        return advantages.unsqueeze(1).expand(mask.shape)
    if advantages.shape == mask.shape:
        return advantages
    raise ValueError(f"advantages {tuple(advantages.shape)} must be [B] or [B, T], with [B, T] = {tuple(mask.shape)}")


def _aggregated(
    per_token: Tensor, valid: Tensor, aggregation: Aggregation, normaliser: float | Tensor | None
) -> Tensor:
    if (aggregation == "fixed") != (normaliser is not None):
        raise ValueError(
            f"aggregation {aggregation!r} with normaliser {normaliser}: give one for 'fixed', and only then"
        )
    if normaliser is not None:
        return per_token.sum() / normaliser
    if aggregation == "token":
        return per_token.sum() / valid.sum().clamp(min=1)
    if aggregation == "response":
        return (per_token.sum(1) / valid.sum(1).clamp(min=1)).mean()
    raise ValueError(f"aggregation {aggregation!r}: token, response or fixed")
