"""How many of the six rewarded paths a trained policy keeps, and how often it walks one."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from entrostat.lab.tree import mdp
from entrostat.lab.tree.train import Active

MODE = 0.005
"""A rewarded path is a mode from this probability on: five of the paper's 1,000 responses."""
PAPER = {"GRPO": (1, 1.00), "GRPO + entropy": (6, 0.48), "CaSP": (6, 1.00)}
"""(modes, accuracy) of Fig. 5; for GRPO it gives the mode only, and a policy on one rewarded path is always right."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One method at one step size; lists have an entry a seed.

    Args:
        family: GRPO, GRPO + entropy, or CaSP.
        active: the interventions that were on.
        lr: step size.
        accuracy: the probability of the six rewarded paths.
        modes: how many of them have at least 0.5 %.
        probs: the probability of each of the six, in the order of ``mdp.REWARDED``.
    """

    family: str
    active: Active
    lr: float
    accuracy: list[float]
    modes: list[int]
    probs: list[list[float]]

    @property
    def mean_accuracy(self) -> float:
        """Over seeds."""
        return sum(self.accuracy) / len(self.accuracy)

    @property
    def mean_modes(self) -> float:
        """Over seeds."""
        return sum(self.modes) / len(self.modes)

    @property
    def name(self) -> str:
        """``CaSP N=3 a=0.01 lambda=1.1 tau=0.8``."""
        short = {"num_candidates": "N", "lambda_top1": "lambda"}
        parts = [f"{short.get(key, key)}={value:g}" for params in self.active.values() for key, value in params.items()]
        return " ".join([self.family, *parts])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name} | asdict(self)


def outcomes(family: str, active: Active, lrs: Sequence[float], probs: Tensor) -> list[Outcome]:
    """One for each step size.

    Args:
        family: what kind of method.
        active: the interventions that were on.
        lrs: L step sizes.
        probs: [L, S, 64] of every path.
    """
    order = [mdp.PATHS.index(path) for path in mdp.REWARDED]
    found = []
    for lr, part in zip(lrs, probs[..., order], strict=True):
        modes = (part >= MODE).sum(1)
        found.append(Outcome(family, active, lr, part.sum(1).tolist(), modes.tolist(), part.tolist()))
    return found


def frontier(given: Sequence[Outcome]) -> list[Outcome]:
    """Those that no other beats in both mean accuracy and mean modes, by accuracy."""
    ordered = sorted(given, key=lambda o: (-o.mean_accuracy, -o.mean_modes))
    kept: list[Outcome] = []
    for o in ordered:
        if not kept or o.mean_modes > kept[-1].mean_modes:
            kept.append(o)
    return kept[::-1]


def best(given: Sequence[Outcome], accuracy: float) -> Outcome | None:
    """Of those with at least this mean accuracy, the one with the most modes; of equals the more accurate."""
    enough = [o for o in given if o.mean_accuracy >= accuracy]
    return max(enough, key=lambda o: (o.mean_modes, o.mean_accuracy), default=None)


def nearest(given: Sequence[Outcome], point: tuple[float, float]) -> Outcome:
    """Nearest to the paper's (modes, accuracy); six modes count as much as an accuracy of 1."""
    modes, accuracy = point
    return min(given, key=lambda o: ((o.mean_modes - modes) / 6) ** 2 + (o.mean_accuracy - accuracy) ** 2)
