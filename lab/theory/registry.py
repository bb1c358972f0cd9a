"""Every identity that is held, in the order of the table."""

import numpy as np

from entrostat.lab.theory import (
    candidate_gradient,
    distinct,
    entropy_change,
    kernel,
    partition,
    redistribution,
    squeeze,
)
from entrostat.lab.theory.finding import Check, Finding

CHECKS: tuple[Check, ...] = (
    redistribution.check,
    entropy_change.check,
    partition.check,
    distinct.check,
    squeeze.check,
    candidate_gradient.check,
    kernel.check,
)


def random_of(check: Check, seed: int) -> np.random.Generator:
    """The random numbers of one of ``CHECKS``: its own, so that one more case elsewhere changes nothing here."""
    return np.random.default_rng([seed, CHECKS.index(check)])


def findings(seed: int, cases: int) -> list[Finding]:
    """Run every check.

    Args:
        seed: of the random cases, at least 0.
        cases: how many of each, at least 1.
    """
    return [finding for check in CHECKS for finding in check(random_of(check, seed), cases)]
