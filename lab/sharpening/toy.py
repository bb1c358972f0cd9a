"""Train many copies of the toy at once: every estimator and every seed of one setting is a slice of one tensor.

A policy is linear in its input: f(q, o) = w_o . e_q, from weights of 0, so that Cat and Persian start alike.

**Decision** what the paper does not say: initial weights (0), step sizes (several are run), mean or sum over the group
(mean), momentum (0.9), AdamW's weight decay (torch's 0.01), the memory's optimiser and step size (those of the policy).
The ratio is 1 throughout: one update a rollout, and as in Alg. 1 no correction for DLC's sampling.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from entrostat.interventions.chain import chain
from entrostat.interventions.policy_loss import policy_loss
from entrostat.lab.sharpening import labels
from entrostat.lab.sharpening.advantages import ESTIMATORS

MAX_GROUP = 32
MOMENTUM = 0.9


class Optimiser(StrEnum):
    """What takes the steps."""

    sgd = "SGD"
    momentum = "momentum"
    adamw = "AdamW"


class Calibration(StrEnum):
    """What is done against over-sharpening (Over-sharpening Sec. 3)."""

    none = "none"
    iac = "IAC"
    iac_dlc = "IAC + DLC"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the toy.

    Args:
        lr: step size of the policy and of the memory.
        optimiser: of both.
        calibration: none, IAC, or IAC and DLC.
        group_size: G labels a step, 2 to 32.
        steps: updates.
        mu: DLC's weight of the memory's logits.
    """

    lr: float
    optimiser: Optimiser
    calibration: Calibration
    group_size: int
    steps: int = 500
    mu: float = 0.5


@dataclass(frozen=True, slots=True)
class Course:
    """What K estimators x S seeds went through; step 0 is before the first update.

    Args:
        probs: [steps + 1, K, S, 4] pi(label | Persian).
        siamese: [steps + 1, K, S, 3] pi(Siamese | Siamese) at high, mid and low similarity.
    """

    probs: Tensor
    siamese: Tensor


def uniforms(seeds: Iterable[int], steps: int) -> Tensor:
    """[steps, S, 32] random numbers. A seed has its own, the same in every setting: settings are compared in pairs."""
    drawn = [
        torch.rand(steps, MAX_GROUP, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed in seeds
    ]
    return torch.stack(drawn, dim=1)


def sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """[M, G] labels drawn from softmax(``logits`` [M, 4]) by inversion of ``uniform`` [M, G]."""
    cumulative = logits.softmax(1).cumsum(1)
    return (uniform.unsqueeze(2) > cumulative.unsqueeze(1)).sum(2).clamp(max=logits.shape[1] - 1)


def train(setting: Setting, uniform: Tensor, estimators: Sequence[str] = tuple(ESTIMATORS)) -> Course:
    """Train every estimator with every seed.

    Args:
        setting: what is common to them.
        uniform: [steps, S, 32] from ``uniforms``.
        estimators: K names of ``ESTIMATORS``.
    """
    num_seeds, size = uniform.shape[1], setting.group_size
    num_models = len(estimators) * num_seeds
    given = labels.inputs()
    policy, memory = (torch.zeros(num_models, 4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    step_policy, step_memory = (_optimiser(w, setting) for w in (policy, memory))
    groups = torch.arange(num_models).repeat_interleave(size)
    transforms = chain({} if setting.calibration is Calibration.none else {"iac": {}})
    seen = [_probabilities(policy, given)]
    for step in range(setting.steps):
        logits = labels.logits(policy, given[:1])[:, 0]
        sampling = logits.detach()
        if setting.calibration is Calibration.iac_dlc:
            sampling = sampling - setting.mu * labels.logits(memory, given[:1])[:, 0].detach()
        drawn = sample(sampling, uniform[step, :, :size].repeat(len(estimators), 1))
        rewards = ((drawn == labels.CAT) | (drawn == labels.PERSIAN)).to(torch.float64)
        parts = zip(estimators, rewards.reshape(-1, num_seeds, size), strict=True)
        advantages = torch.cat([ESTIMATORS[name](part) for name, part in parts])
        logp = logits.log_softmax(1).gather(1, drawn).reshape(-1, 1)
        done = policy_loss(
            logp,
            advantages.reshape(-1),
            torch.ones_like(logp),
            transforms=transforms,
            # The sum over models of each one's mean over its group: no model sees another's gradient.
            aggregation="fixed",
            normaliser=float(size),
            groups=groups,
        )
        _update(step_policy, done.loss)
        if setting.calibration is Calibration.iac_dlc:
            remembered = labels.logits(memory, given[:1])[:, 0].log_softmax(1).gather(1, drawn)
            _update(step_memory, -remembered.mean(1).sum())
        seen.append(_probabilities(policy, given))
    course = torch.stack(seen).reshape(len(seen), len(estimators), num_seeds, *seen[0].shape[1:])
    return Course(course[..., 0, :], course[..., 1:, labels.SIAMESE])


def _optimiser(weights: Tensor, setting: Setting) -> torch.optim.Optimizer:
    if setting.optimiser is Optimiser.adamw:
        return torch.optim.AdamW([weights], lr=setting.lr)
    momentum = MOMENTUM if setting.optimiser is Optimiser.momentum else 0.0
    return torch.optim.SGD([weights], lr=setting.lr, momentum=momentum)


def _update(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def _probabilities(policy: Tensor, given: Tensor) -> Tensor:
    """[M, 4 inputs, 4 labels]."""
    return labels.logits(policy.detach(), given).softmax(2)
