"""The squeeze effect of negative updates (CaSP Lemma 2, Eq. 18 to 20), through the product's own loss by autograd.

A token y with A < 0 is pushed down; its probability goes to the others in proportion to what they have, so the rank-1
candidate gains most unless it is y itself.

Ours beside it: to first order ln p_v of the rank-1 candidate rises by c (p_1 + p_y - sum p^2), c = |A| ratio eta, which
is never negative since sum p^2 <= p_1. That holds our ``sum_p2`` to account.
"""

from dataclasses import dataclass

import numpy as np
import torch

from entrostat.interventions import policy_loss
from entrostat.lab.theory import policy
from entrostat.lab.theory.finding import Finding
from entrostat.probe.step import Floats

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class Push:
    """One sampled token: ``logits`` [V] of the policy, ``label`` y, ``advantage`` A < 0, ``ratio`` inside the clip."""

    logits: Floats
    label: int
    advantage: float
    ratio: float


def random_push(draw: np.random.Generator) -> Push:
    """3 to 40 tokens; y any of them."""
    logits = policy.random_logits(draw, int(draw.integers(3, 41)))
    return Push(
        logits, int(draw.integers(logits.size)), -float(draw.uniform(0.1, 3.0)), float(draw.uniform(0.85, 1.15))
    )


def rise(given: Push) -> Floats:
    """dz [V] of one step of size 1 down the product's policy loss."""
    z = torch.from_numpy(given.logits).requires_grad_()
    logp = z.log_softmax(0)[given.label].reshape(1, 1)
    old = logp.detach() - float(np.log(given.ratio))
    advantage = torch.tensor([given.advantage], dtype=torch.float64)
    policy_loss.policy_loss(logp, advantage, torch.ones(1, 1), old_logp=old).loss.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    result: Floats = -z.grad.numpy()
    return result


def coupling(given: Push) -> Floats:
    """d p_y / d z_v [V] by autograd."""
    z = torch.from_numpy(given.logits).requires_grad_()
    z.softmax(0)[given.label].backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    result: Floats = z.grad.numpy()
    return result


def check(draw: np.random.Generator, cases: int) -> list[Finding]:
    """The derivative, the rise of the others, who gains most, and that the rank-1 candidate's probability rises."""
    derivative, shares, gain, misplaced, others = [], [], [], 0, 0
    for _ in range(cases):
        given = random_push(draw)
        stats = policy.statistics(given.logits, kept=1)
        p = stats.logp.exp().numpy()
        y, top = given.label, int(stats.top_ids[0, 0])
        expected = -p[y] * p
        expected[y] += p[y]
        derivative.append(np.abs(coupling(given) - expected).max())
        dz, force = rise(given), -given.advantage * given.ratio
        alternatives = np.arange(p.size) != y
        shares.append(np.abs(dz - force * p)[alternatives].max() / force)
        if y != top:
            others += 1
            misplaced += int(np.argmax(np.where(alternatives, dz, -np.inf)) != top)
            first_order = dz[top] - (p * dz).sum()
            gain.append(abs(first_order - force * (p[top] + p[y] - float(stats.sum_p2[0]))) / force)
    lemma = "CaSP Lemma 2"
    return [
        Finding(
            "d p_y / d z_v = p_y ([v=y] - p_v)",
            f"{lemma}, Eq. 18, 19",
            "autograd of the softmax against our log-probs",
            cases,
            float(np.max(derivative)),
            64 * _EPS,
        ),
        Finding(
            "negative update raises z_v by |A| r p_v",
            f"{lemma}, Eq. 20",
            "autograd through our policy loss against our log-probs. Over |A| r",
            cases,
            float(np.max(shares)),
            64 * _EPS,
        ),
        Finding(
            "rank 1 gains most",
            lemma,
            "cases with y not our rank 1 in which another token's logit rose most",
            others,
            float(misplaced),
            0.0,
        ),
        Finding(
            "d ln p_1 = |A| r (p_1 + p_y - sum p^2)",
            f"from {lemma}",
            "autograd through our policy loss against our sum_p2 and log-probs. Over |A| r",
            len(gain),
            float(np.max(gain)),
            64 * _EPS,
        ),
    ]
