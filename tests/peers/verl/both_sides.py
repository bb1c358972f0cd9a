"""A random batch, and the loss and gradient that verl's function and ours make of it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig, PolicyLossConfig

from entrostat.interventions.chain import chain
from entrostat.interventions.policy_loss import PolicyLoss, policy_loss

EPS_LOW, EPS_HIGH = 0.2, 0.28
NO_DUAL_CLIP = 1e9


@dataclass(frozen=True)
class Batch:
    """logp, old_logp, advantages, mask: all [B, T]."""

    logp: Tensor
    old_logp: Tensor
    advantages: Tensor
    mask: Tensor

    def with_(self, **changes):
        return replace(self, **changes)


def batch(seed, dtype=torch.float64, *, on_policy=False, has_holes=False, is_per_token=False, b=6, t=24):
    """Responses of random lengths, at least one token each.

    ``has_holes``: any tokens may be missing, as where a tool wrote them. ``is_per_token``: advantages differ within a
    response. Off policy, about half of the ratios lie beyond the clip.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, t + 1, (b, 1), generator=generator)
    mask = torch.arange(t).expand(b, t) < lengths
    if has_holes:
        mask = mask & (torch.rand(b, t, generator=generator) < 0.7)
        mask[:, 0] = True
    logp = -1.5 * draw(b, t).abs()
    old_logp = logp.clone() if on_policy else logp + 0.4 * draw(b, t)
    advantages = draw(b, t) if is_per_token else draw(b, 1).expand(b, t).contiguous()
    return Batch(logp.to(dtype), old_logp.to(dtype), advantages.to(dtype), mask)


def verls(name, seen, mode="token-mean", *, clip_ratio_c=NO_DUAL_CLIP, global_batch=None, **policy_loss_options):
    """verl's loss and its gradient to the log-probs [B, T]; ``name`` as in verl's registry."""
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=mode,
        clip_ratio_low=EPS_LOW, clip_ratio_high=EPS_HIGH, clip_ratio_c=clip_ratio_c,
        policy_loss=PolicyLossConfig(loss_mode=name, **policy_loss_options), global_batch_info=global_batch or {},
    )  # fmt: skip
    logp = seen.logp.clone().requires_grad_()
    loss, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=seen.old_logp, log_prob=logp, advantages=seen.advantages, response_mask=seen.mask,
        loss_agg_mode=mode, config=config,
    )  # fmt: skip
    loss.backward()
    return loss.detach(), logp.grad


def ours(active, seen, *, states=None, **options) -> tuple[PolicyLoss, Tensor]:
    """Our loss with the methods of ``active`` (name -> parameters), and its gradient to the log-probs [B, T]."""
    logp = seen.logp.clone().requires_grad_()
    result = policy_loss(
        logp, seen.advantages, seen.mask, old_logp=seen.old_logp, transforms=chain(active), states=states,
        eps_low=EPS_LOW, eps_high=EPS_HIGH, **options,
    )  # fmt: skip
    result.loss.backward()
    return result, logp.grad


def gap(found, expected):
    """Largest difference, relative to the largest value expected."""
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


def covariance(seen):
    """(logp - mean)(A - mean) of the valid tokens [N] (Entropy Mechanism Eq. 8), in their order."""
    logp, advantages = seen.logp[seen.mask], seen.advantages[seen.mask]
    return (logp - logp.mean()) * (advantages - advantages.mean())
