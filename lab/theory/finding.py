"""What a check found: one line of the table."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Finding:
    """An identity and the largest error seen.

    Args:
        identity: the claim, in a few words.
        source: paper and equation.
        compared: what was held against what, and how the error is scaled.
        cases: how many random cases were drawn.
        error: the largest error; NaN never holds.
        bound: what it may be.
    """

    identity: str
    source: str
    compared: str
    cases: int
    error: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the largest error is within the bound."""
        return self.error <= self.bound


Check = Callable[[np.random.Generator, int], list[Finding]]
"""(random numbers, cases) -> findings."""
