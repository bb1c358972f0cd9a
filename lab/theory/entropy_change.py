"""Entropy after one exact step of a tabular policy, against the covariance (Entropy Mechanism Lemma 1, Thm 1, Thm 2).

One state, V actions with a logit each, Q of every action known: nothing is sampled. The step is the true gradient of
J = sum pi Q by autograd (Thm 1), or the inverse of the Fisher matrix times it (Thm 2); A = Q - sum pi Q.

The covariance is the product's, over a batch in which each action occurs as often as the policy takes it.

**Decision**: the theorems' "vanilla policy gradient" is the step of this state alone. In a process with several states
the gradient of J has the state's visits as a further factor (the paper leaves it out).
**Decision**: where Q hardly covaries with the log-prob (correlation under 0.2), first and second order are of one size
at any eta and a ratio says nothing: such draws are left out of the ratios, not of Lemma 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from entrostat.lab.theory import policy
from entrostat.lab.theory.finding import Finding
from entrostat.probe import token_stats
from entrostat.probe.definitions import Settings
from entrostat.probe.signals import covariance
from entrostat.probe.step import Floats, Ints

_EPS = float(np.finfo(np.float64).eps)
ETAS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Step sizes of the ratios."""
_LEAST_CORRELATION = 0.2


@dataclass(frozen=True, slots=True)
class Bandit:
    """One state: ``counts`` [V] of each action in the batch (the policy is their share), ``q`` [V] its value."""

    counts: Ints
    q: Floats

    @property
    def logits(self) -> Floats:
        """[V], of the policy counts / sum."""
        result: Floats = np.log(self.counts) + 0.7  # an offset that the softmax does not see
        return result

    @property
    def advantage(self) -> Floats:
        """A = Q - V [V]."""
        result: Floats = self.q - (self.counts * self.q).sum() / self.counts.sum()
        return result


def random_bandit(draw: np.random.Generator) -> Bandit:
    """3 to 20 actions."""
    size = int(draw.integers(3, 21))
    return Bandit(policy.random_counts(draw, size), draw.normal(size=size))


def entropy(logits: Floats) -> float:
    """The product's entropy of one softmax [V], nats."""
    row = torch.from_numpy(logits).unsqueeze(0)
    return float(token_stats.from_logits(row, torch.zeros(1, dtype=torch.int64)).entropy[0])


def policy_gradient(given: Bandit) -> Floats:
    """dz / eta [V] of gradient ascent on J = sum pi Q."""
    z = torch.from_numpy(given.logits).requires_grad_()
    (z.softmax(0) * torch.from_numpy(given.q)).sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    result: Floats = z.grad.numpy()
    return result


def natural_gradient(given: Bandit) -> Floats:
    """dz / eta [V]: the Fisher matrix' pseudo-inverse times the gradient, which is A up to a constant."""
    pi = policy.probabilities(given.logits)
    fisher = np.diag(pi) - np.outer(pi, pi)
    result: Floats = np.linalg.pinv(fisher, rcond=1e-12, hermitian=True) @ policy_gradient(given)
    return result


def batch_covariance(given: Bandit, value: Floats) -> float:
    """Cov over a ~ pi of (log pi, value [V]): the product's ``cov_mean`` over the batch, and its tokens' mean."""
    logp = np.repeat(policy.statistics(given.logits).logp.numpy(), given.counts)
    batch = policy.tokens(logp, np.repeat(value, given.counts))
    merged = covariance.parts(batch, Settings())["cov_mean"].value
    by_token = float(covariance.cov_token(batch).mean())
    # The signal and the tokens' values are two paths to one number: a difference is a defect of either.
    return by_token if merged is not None and abs(merged - by_token) <= 1e-10 * (1 + abs(merged)) else float("nan")


def change(given: Bandit, step: Floats, eta: float) -> float:
    """H(z + eta step) - H(z), nats."""
    return entropy(given.logits + eta * step) - entropy(given.logits)


@dataclass(frozen=True, slots=True)
class Theorem:
    """A step and what the theorem multiplies with the advantage in the covariance."""

    name: str
    source: str
    step: Callable[[Bandit], Floats]
    weighted: Callable[[Bandit], Floats]

    def ratios(self, given: Bandit) -> Floats:
        """The change of entropy over -eta Cov at each of ``ETAS``: 1 in the limit, where the theorem holds."""
        step, slope = self.step(given), -batch_covariance(given, self.weighted(given))
        return np.array([change(given, step, eta) / (eta * slope) for eta in ETAS])


THEOREMS = (
    Theorem(
        "policy gradient",
        "Entropy Mechanism Thm 1",
        policy_gradient,
        lambda given: given.counts / given.counts.sum() * given.advantage,
    ),
    Theorem("natural gradient", "Entropy Mechanism Thm 2", natural_gradient, lambda given: given.advantage),
)


def worst_ratios(draw: np.random.Generator, cases: int) -> list[Floats]:
    """For each theorem and each of ``ETAS``, of all cases, the ratio that is farthest from 1."""
    found = []
    for theorem in THEOREMS:
        ratios = np.stack([theorem.ratios(given) for given in bandits_for_ratios(draw, cases, theorem)])
        farthest = np.argmax(np.abs(ratios - 1), axis=0)  # argmax takes a NaN first
        found.append(ratios[farthest, np.arange(len(ETAS))])
    return found


def order(ratios: Floats) -> float:
    """By how many powers of eta |ratio - 1| falls from the third to the fifth of ``ETAS``."""
    errors = np.abs(ratios - 1)
    return float(np.log10(errors[2] / errors[4]) / np.log10(ETAS[2] / ETAS[4]))


def bandits_for_ratios(draw: np.random.Generator, cases: int, theorem: Theorem) -> list[Bandit]:
    """Random bandits whose log-prob and weighted advantage correlate."""
    found: list[Bandit] = []
    while len(found) < cases:
        given = random_bandit(draw)
        pi = given.counts / given.counts.sum()
        x, y = (v - (pi * v).sum() for v in (np.log(pi), theorem.weighted(given)))
        spread = np.sqrt((pi * x * x).sum() * (pi * y * y).sum())
        if np.sqrt((pi * x * x).sum()) > 0.3 and abs((pi * x * y).sum()) > _LEAST_CORRELATION * spread:
            found.append(given)
    return found


def check(draw: np.random.Generator, cases: int) -> list[Finding]:
    """Lemma 1 at eta = 0 by autograd, then for each theorem the ratio at the smallest eta and the order."""
    worst = worst_ratios(draw, cases)  # the first draws, so that the table of ratios can have the same
    findings = [_lemma(draw, cases), _baseline(draw, cases)]
    for theorem, ratios in zip(THEOREMS, worst, strict=True):
        findings += [
            Finding(
                f"entropy change, {theorem.name}",
                theorem.source,
                f"our entropy after an exact step over -eta x our covariance, minus 1, at eta = {ETAS[-1]:.0e}",
                cases,
                float(abs(ratios[-1] - 1)),
                1e-3,
            ),
            Finding(
                f"order of convergence, {theorem.name}",
                theorem.source,
                f"|ratio - 1| ~ eta^1 from eta = {ETAS[2]:.0e} to {ETAS[4]:.0e}: the exponent minus 1",
                cases,
                abs(order(ratios) - 1),
                0.05,
            ),
        ]
    return findings


def _lemma(draw: np.random.Generator, cases: int) -> Finding:
    errors = []
    for _ in range(cases):
        given = random_bandit(draw)
        step = draw.normal(size=given.q.size)
        z = torch.from_numpy(given.logits).requires_grad_()
        torch.special.entr(z.softmax(0)).sum().backward()
        assert z.grad is not None
        slope = float((z.grad.numpy() * step).sum())
        errors.append(abs(slope + batch_covariance(given, step)) / np.abs(step).max())
    return Finding(
        "dH/d eta = -Cov(log pi, dz)",
        "Entropy Mechanism Lemma 1",
        "slope of the entropy along a random step by autograd against our covariance. Over max |dz|",
        cases,
        float(np.max(errors)),
        256 * _EPS,
    )


def _baseline(draw: np.random.Generator, cases: int) -> Finding:
    errors = []
    for _ in range(cases):
        given = random_bandit(draw)
        logp = policy.statistics(given.logits).logp.numpy()
        plain = covariance.cov_token(policy.tokens(logp, given.advantage))
        moved = covariance.cov_token(policy.tokens(logp - 3.0, given.advantage + 5.0))
        errors.append(np.abs(moved - plain).max() / (1 + np.abs(plain).max()))
    return Finding(
        "a token's covariance sees no baseline",
        "Entropy Mechanism Eq. 8",
        "our tokens' values with a constant added to log-probs and advantages, against those without. Over 1 + max",
        cases,
        float(np.max(errors)),
        256 * _EPS,
    )
