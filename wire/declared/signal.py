"""What a declaration says."""

from dataclasses import dataclass
from typing import Literal

Merge = Literal["mean", "estimate", "sum", "max", "std", "comoment", "last", "derived"]
Direction = Literal["up", "down", "none"]
Shape = Literal["number", "histogram", "positions", "run"]
Need = Literal[
    "advantages", "groups", "rewards", "old log-probs", "candidates", "sum of squares", "hidden states", "text",
    "prompt texts", "answers", "rollout log-probs", "rollout probe",
]  # fmt: skip
"""An input that not every trainer or loop has."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal, one definition.

    Args:
        name: as in SQL, charts and Prometheus.
        unit: ``nats``, ``share`` (0 to 1), ``tokens``, ``ms``, ``1`` for a plain number.
        meaning: one sentence for a tooltip or a column comment.
        merge: how parts of it add up (``wire/mergeable.py``); ``derived`` signals are made by the views.
        source: paper and equation, or ``ours``.
        needs: the inputs without which it is absent.
        better: the direction people hope for; ``none`` where there is none.
        shape: ``number``: one a step; ``histogram``: tokens in bins, one a step; ``positions``: a curve over relative
            positions in the response, one a step; ``run``: one statement about the whole run.
    """

    name: str
    unit: str
    meaning: str
    merge: Merge
    source: str
    needs: tuple[Need, ...] = ()
    better: Direction = "none"
    shape: Shape = "number"
