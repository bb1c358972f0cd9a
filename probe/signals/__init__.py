"""The signals, one module a family: a function from a step's data to mergeable parts, in float64 on the host."""

from collections.abc import Callable

from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.signals import (
    candidates,
    covariance,
    entropy,
    groups,
    lengths,
    perplexity,
    ratio,
    scope,
)
from entrostat.probe.step import StepData
from entrostat.wire.mergeable import Part
from entrostat.wire.signals import BY_NAME

Parts = dict[str, Part]


Family = Callable[[StepData, Settings], Parts]

FAMILIES: tuple[Family, ...] = (
    entropy.parts,
    candidates.parts,
    covariance.parts,
    scope.parts,
    perplexity.parts,
    ratio.parts,
    lengths.parts,
)
"""Joining this tuple means joining the laws in ``tests/contract/``."""


def signals_of(step: StepData, rollouts: list[Rollout], settings: Settings) -> Parts:
    """Every signal whose inputs are there.

    Raises:
        KeyError: a family made a name that the vocabulary lacks.
    """
    found: Parts = {}
    for family in FAMILIES:
        found |= family(step, settings)
    found |= groups.parts(rollouts, settings)
    for name, part in found.items():
        if BY_NAME[name].merge != part.merge:
            raise ValueError(f"{name} merges as {part.merge!r}, its declaration says {BY_NAME[name].merge!r}")
    return found
