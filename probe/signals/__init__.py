"""The signals, one module a family: a function from a step's data to mergeable parts, in float64 on the host."""

from collections.abc import Callable

from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.signals import (
    candidates,
    covariance,
    entropy,
    groups,
    lengths,
    mismatch,
    perplexity,
    ratio,
    scope,
    text,
)
from entrostat.probe.step import StepData
from entrostat.wire.mergeable import Part
from entrostat.wire.signals import BY_NAME

Parts = dict[str, Part]


Family = Callable[[StepData, Settings], Parts]

MAKERS: dict[str, tuple[Family, ...]] = {
    "entropy": (entropy.parts,),
    "candidates": (candidates.parts,),
    "covariance": (covariance.parts,),
    "collapse": (scope.parts,),
    "perplexity": (perplexity.parts,),
    "groups": (groups.advantage_parts,),
    "policy": (ratio.parts,),
    "mismatch": (mismatch.parts,),
    "length": (lengths.parts,),
    "text": (text.parts,),
    "cost": (lengths.counts,),
}
"""Family of ``wire/signals.py`` -> what makes its signals from a step."""


def signals_of(step: StepData, rollouts: list[Rollout], settings: Settings) -> Parts:
    """Every signal whose inputs are there and whose family is on.

    Raises:
        KeyError: a family made a name that the vocabulary lacks.
        ValueError: a family made a part with another merge rule than the signal's.
    """
    found: Parts = {}
    for family, makers in MAKERS.items():
        if family not in settings.without:
            for make in makers:
                found |= make(step, settings)
    if "groups" not in settings.without:
        found |= groups.parts(rollouts, settings)
    for name, part in found.items():
        if BY_NAME[name].merge != part.merge:
            raise ValueError(f"{name} merges as {part.merge!r}, its declaration says {BY_NAME[name].merge!r}")
    return found
