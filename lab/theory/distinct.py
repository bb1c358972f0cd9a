"""E[distinct next tokens] in K draws (CaSP Prop. 3): the product's ``expected_distinct`` against counting and sampling.

**Decision**: the product sums over the n candidates it keeps, a lower bound, and adds K x the mass beyond them for an
upper one (1 - (1-p)^K <= K p, the paper's own Eq. 25). With every candidate kept the two are the proposition's value.
"""

import itertools

import numpy as np

from entrostat.lab.theory import policy
from entrostat.lab.theory.finding import Finding
from entrostat.probe.signals import candidates
from entrostat.probe.step import Floats

_EPS = float(np.finfo(np.float64).eps)
_TRIALS = 4000


def ours(logits: Floats, draws: int, kept: int) -> tuple[float, float]:
    """Lower and upper value of the product, from its own ``kept`` most likely candidates of a softmax [V]."""
    top = policy.statistics(logits, kept=kept).top_logps.numpy()[:1]
    low, high = candidates.expected_distinct(top, draws)
    return float(low[0]), float(high[0])


def counted(p: Floats, draws: int) -> float:
    """The expectation by going through all V^K outcomes."""
    outcomes = np.array(list(itertools.product(range(p.size), repeat=draws)))
    ordered = np.sort(outcomes, axis=1)
    distinct = 1 + (np.diff(ordered, axis=1) != 0).sum(axis=1)
    return float((p[outcomes].prod(axis=1) * distinct).sum())


def sampled(draw: np.random.Generator, p: Floats, draws: int) -> tuple[float, float]:
    """Mean over ``_TRIALS`` trials of K draws, and its standard error."""
    ordered = np.sort(draw.choice(p.size, size=(_TRIALS, draws), p=p), axis=1)
    distinct = 1.0 + (np.diff(ordered, axis=1) != 0).sum(axis=1)
    return float(distinct.mean()), float(distinct.std(ddof=1) / np.sqrt(_TRIALS))


def check(draw: np.random.Generator, cases: int) -> list[Finding]:
    """Exact on small vocabularies, by sampling on larger ones, the bounds, and the limit of a certain token."""
    return [
        _by_counting(draw, cases),
        _by_sampling(draw, cases),
        _bounds(draw, cases),
        _limit(draw, cases),
    ]


def _by_counting(draw: np.random.Generator, cases: int) -> Finding:
    errors = []
    for _ in range(cases):
        logits = policy.random_logits(draw, int(draw.integers(2, 6)))
        draws = int(draw.integers(1, 6))
        exact = counted(policy.probabilities(logits), draws)
        errors.append(np.abs(np.subtract(ours(logits, draws, logits.size), exact)).max())
    compared = "our value and bound, all candidates kept, against all V^K outcomes, V and K up to 5"
    return Finding("E[distinct], counted", "CaSP Prop. 3", compared, cases, float(np.max(errors)), 256 * _EPS)


def _by_sampling(draw: np.random.Generator, cases: int) -> Finding:
    errors = []
    for _ in range(cases):
        logits = policy.random_logits(draw, int(draw.integers(5, 60)))
        draws = int(draw.integers(2, 33))
        mean, error = sampled(draw, policy.probabilities(logits), draws)
        # A policy so sure that no trial showed a second token has no spread to measure in.
        errors.append(abs(mean - ours(logits, draws, logits.size)[0]) / max(error, 1 / _TRIALS))
    compared = f"our value against {_TRIALS} trials of 2 to 32 draws. In standard errors"
    return Finding("E[distinct], sampled", "CaSP Prop. 3", compared, cases, float(np.max(errors)), 6.0)


def _bounds(draw: np.random.Generator, cases: int) -> Finding:
    errors = []
    for _ in range(cases):
        logits = policy.random_logits(draw, int(draw.integers(5, 60)))
        draws, kept = int(draw.integers(1, 65)), int(draw.integers(1, 6))
        low, high = ours(logits, draws, kept)
        p = policy.probabilities(logits)
        exact = float((1 - (1 - p) ** draws).sum())
        errors.append(max(low - exact, exact - high) / exact)
    compared = "1 to 5 candidates kept: by how much the value lies outside ours, relative; below 0: room"
    return Finding(
        "our bounds of E[distinct]", "CaSP Prop. 3, Eq. 25", compared, cases, float(np.max(errors)), 64 * _EPS
    )


def _limit(draw: np.random.Generator, cases: int) -> Finding:
    errors = []
    for _ in range(cases):
        logits = policy.random_logits(draw, 10)
        logits[3] = logits.max() + 40.0
        draws = int(draw.integers(1, 1025))
        errors.append(max(abs(value - 1) for value in ours(logits, draws, 10)))
    compared = "|ours - 1| where the top candidate has 1 - p below 1e-16, up to 1024 draws"
    return Finding("E[distinct] -> 1", "CaSP Prop. 3", compared, cases, float(np.max(errors)), 1e-12)
