"""S_v = L_v + R_v: how much a sampled token's update moves each logit (SCOPE Prop. 1, Eq. 5 to 9; App. A.23).

**Decision**: A_scale (Eq. 6) is the mean of |A| and never negative, so the product's score s = p(1-p)[A]+ (Eq. 11) at
A = A_scale is L_v / (2 eta): L_v is taken from there.

**Decision**: the last column of App. A.23's table is in words. Its text calls the ratio at p = 0.3 "of order 0.4",
which is the third column, |1 - 2p|. Eq. 52 has half of that times the coupling (alpha - beta) / A_scale: 0.2 at a
coupling of 1. We print the ratio at coupling 1, and the largest that any advantages can give.
"""

from dataclasses import dataclass

import numpy as np
import torch

from entrostat.lab.theory import policy
from entrostat.lab.theory.finding import Finding
from entrostat.probe.signals import scope
from entrostat.probe.step import Floats

_EPS = float(np.finfo(np.float64).eps)
PLACES = (1e-6, 0.3, 0.5, 0.7, 1 - 1e-6)
"""p_v of the rows of App. A.23's table; the outer two stand for its limits."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What may follow at one context: V tokens, M trajectories each.

    Args:
        logits: [V].
        weight: [V, M] probability of a trajectory after its token; rows add up to 1.
        advantage: [V, M] of the trajectory, of either sign.
    """

    logits: Floats
    weight: Floats
    advantage: Floats


def random_outcomes(draw: np.random.Generator) -> Outcomes:
    """A context of 2 to 40 tokens with 1 to 6 trajectories each."""
    size, trajectories = int(draw.integers(2, 41)), int(draw.integers(1, 7))
    weight = draw.dirichlet(np.ones(trajectories), size=size)
    return Outcomes(policy.random_logits(draw, size), weight, draw.normal(size=(size, trajectories)))


def magnitude(given: Outcomes, eta: float = 1.0) -> Floats:
    """S_v [V] by its definition (Eq. 5): every token and trajectory in turn, the log-prob's gradient by autograd."""
    z = torch.from_numpy(given.logits)
    slope = torch.func.jacrev(lambda x: x.log_softmax(0))(z).numpy()  # [y, v] = d log p_y / d z_v
    joint = policy.probabilities(given.logits)[:, None] * given.weight
    shift = eta * given.advantage[:, :, None] * slope[:, None, :]
    result: Floats = (joint[:, :, None] * np.abs(shift)).sum(axis=(0, 1))
    return result


def scale(given: Outcomes) -> float:
    """A_scale: the mean of |A| over tokens and trajectories."""
    return float((policy.probabilities(given.logits)[:, None] * given.weight * np.abs(given.advantage)).sum())


def leading(given: Outcomes, eta: float = 1.0) -> Floats:
    """L_v [V] (Eq. 8), from the product's log-probs and its SCOPE score."""
    logp = policy.statistics(given.logits).logp.numpy()
    return 2 * eta * scope.scope_token(policy.tokens(logp, np.full(logp.size, scale(given))))


def residual(given: Outcomes, eta: float = 1.0) -> Floats:
    """R_v [V] (Eq. 9), the covariance of |A| and [y = v] by its definition E[XY] - E[X] E[Y]."""
    p = policy.probabilities(given.logits)
    product = p * (given.weight * np.abs(given.advantage)).sum(axis=1)
    result: Floats = eta * (1 - 2 * p) * (product - scale(given) * p)
    return result


def check(draw: np.random.Generator, cases: int) -> list[Finding]:
    """The identity on random contexts, and App. A.23's ratio against Eq. 52."""
    errors = []
    for _ in range(cases):
        given, eta = random_outcomes(draw), float(draw.uniform(1e-3, 10.0))
        gap = magnitude(given, eta) - leading(given, eta) - residual(given, eta)
        errors.append(np.abs(gap).max() / (eta * scale(given)))
    return [
        Finding(
            "S = L + R",
            "SCOPE Prop. 1",
            "S by enumeration and autograd; L from our SCOPE score and log-probs; R from the covariance. Over eta A",
            cases,
            float(np.max(errors)),
            64 * _EPS,
        ),
        _ratio_finding(draw, cases),
    ]


def _ratio_finding(draw: np.random.Generator, cases: int) -> Finding:
    errors = []
    for p in PLACES:
        for alpha, beta in draw.uniform(0, 2, size=(max(cases // len(PLACES), 1), 2)):
            expected = abs(1 - 2 * p) * abs(alpha - beta) / (2 * (p * alpha + (1 - p) * beta))
            errors.append(abs(ratio(p, alpha, beta) - expected) / max(1.0, expected))
    compared = "|R|/L of two tokens, from the definitions, against |1-2p| |alpha-beta| / 2A; 0 at p = 1/2. Relative"
    return Finding("|R|/L", "SCOPE Eq. 52, App. A.23", compared, len(errors), float(np.max(errors)), 1e-9)


def ratio(p: float, alpha: float, beta: float) -> float:
    """|R_v| / L_v where token v has probability ``p``, |A| is ``alpha`` after it and ``beta`` after any other."""
    given = Outcomes(np.array([np.log(p), np.log1p(-p)]), np.ones((2, 1)), np.array([[alpha], [beta]]))
    with np.errstate(divide="ignore", invalid="ignore"):  # a score that is wrongly 0 becomes an error that never holds
        return float(np.abs(residual(given)[0]) / leading(given)[0])


def table() -> list[tuple[float, float, float, float, float]]:
    """App. A.23 as numbers: p, p(1-p), |1-2p|, |R|/L at coupling 1, and the largest |R|/L there can be.

    Coupling 1: alpha - beta = A_scale. The largest is where |A| is 0 on the likelier side.
    """
    rows = []
    for p in PLACES:
        # alpha = beta + 1 and p alpha + (1-p) beta = 1.
        at_one = ratio(p, 2 - p, 1 - p)
        rows.append((p, p * (1 - p), abs(1 - 2 * p), at_one, max(ratio(p, 1.0, 0.0), ratio(p, 0.0, 1.0))))
    return rows
