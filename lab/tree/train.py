"""GRPO on the tree, with whatever interventions are on: all step sizes and seeds of one method in one tensor.

**Decision** what the paper does not say: SGD, the group size, the step sizes and the number of steps (options of the
command), one update a rollout; GRPO's loss is the mean over the choices of a path, then over paths.
**Decision**: after its three choices a path has an end token, which is certain, as a response has. Its entropy is 0, so
that "above the tau-quantile of the response" (CaSP) takes in all three choices at tau = 0, and also the uniform start,
where they tie. Without it the least uncertain choice is always left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from entrostat.interventions.chain import chain
from entrostat.interventions.policy_loss import policy_loss
from entrostat.lab.tree import mdp

Active = Mapping[str, Mapping[str, Any]]
"""Intervention -> its parameters, as ``chain`` takes them."""

EPS = 1e-6
CANDIDATES = len(mdp.ACTIONS)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is common to every run.

    Args:
        lrs: L step sizes.
        num_seeds: S seeds, from 0.
        steps: updates.
        group_size: G paths a step.
        has_end: whether a path has an end token.
    """

    lrs: tuple[float, ...]
    num_seeds: int
    steps: int
    group_size: int
    has_end: bool = True


def uniforms(plan: Plan) -> Tensor:
    """[steps, S, G] random numbers; a seed has its own, the same for every method and step size."""
    shape = (plan.steps, plan.group_size)
    generators = (torch.Generator().manual_seed(seed) for seed in range(plan.num_seeds))
    return torch.stack([torch.rand(shape, generator=g, dtype=torch.float64) for g in generators], dim=1)


def advantages(rewards: Tensor) -> Tensor:
    """GRPO's [M, G]: minus the group's mean, over its standard deviation; 0 where all are equal."""
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True, correction=0) + EPS)


def train(plan: Plan, active: Active, uniform: Tensor) -> Tensor:
    """[L, S, 64] the probability of every path at the end, from a uniform start.

    Args:
        plan: step sizes, seeds, steps, group size.
        active: the interventions that are on; none is GRPO.
        uniform: from ``uniforms``.
    """
    shape = (plan.num_seeds, mdp.NUM_STATES, len(mdp.ACTIONS))
    policies = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for _ in plan.lrs]
    optimiser = torch.optim.SGD([{"params": [p], "lr": lr} for p, lr in zip(policies, plan.lrs, strict=True)])
    transforms = chain(active)
    for step in range(plan.steps):
        logits = torch.cat(policies)
        paths = mdp.sample(logits.detach(), uniform[step].repeat(len(plan.lrs), 1))
        logp, entropy, top_logps, is_top1 = seen(logits, paths, plan.has_end)
        done = policy_loss(
            logp,
            advantages(mdp.IS_REWARDED[paths].to(torch.float64)).reshape(-1),
            torch.ones_like(logp),
            transforms=transforms,
            # The sum over policies of each one's mean: no policy sees another's gradient.
            aggregation="fixed",
            normaliser=float(plan.group_size * mdp.HORIZON),
            entropy=entropy,
            top_logps=top_logps,
            is_top1=is_top1,
        )
        optimiser.zero_grad()
        done.loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return mdp.path_probs(torch.stack(policies).detach())


def seen(logits: Tensor, paths: Tensor, has_end: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the loss is given of the ``paths`` [M, G] of policies with ``logits`` [M, 21, 4]; B = M x G rows.

    Returns:
        logp, entropy [B, T]; top_logps [B, T, 4] and is_top1 [B, T]. T is 3, and 1 more with the end token.
    """
    rows = logits.log_softmax(-1).repeat_interleave(paths.shape[1], 0)
    states, choices = (table[paths.reshape(-1)] for table in (mdp.STATES, mdp.CHOICES))
    at = rows.gather(1, states.unsqueeze(2).expand(-1, -1, CANDIDATES))  # [B, 3, 4]
    top = at.topk(CANDIDATES, dim=2)
    end = (0, int(has_end))
    return (
        pad(at.gather(2, choices.unsqueeze(2)).squeeze(2), end),
        pad(-(at.exp() * at).sum(2), end),
        pad(top.values, (0, 0, *end)),
        pad(top.indices[..., 0] == choices, end),
    )
