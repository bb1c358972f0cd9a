"""Several methods at once: in the order of phases, refused where they cannot be combined."""

from collections.abc import Mapping, Sequence
from typing import Any

from entrostat.interventions.methods import BY_NAME
from entrostat.interventions.transform import Phase, Transform


def chain(active: Mapping[str, Mapping[str, Any]]) -> tuple[Transform, ...]:
    """The transforms of the methods that are on, in the order in which the loss applies them.

    Args:
        active: method name -> its parameters; those not given take the paper's defaults.

    Raises:
        ValueError: an unknown method, a parameter out of bounds, or two methods that exclude each other, with the
            reason.
    """
    for name in active:
        if name not in BY_NAME:
            raise ValueError(f"unknown intervention {name!r}: there are {', '.join(sorted(BY_NAME))}")
    for name in active:
        for other, reason in BY_NAME[name].excludes.items():
            if other in active:
                raise ValueError(f"{name} and {other} cannot be combined: {reason}")
    made = []
    for name, params in active.items():
        method = BY_NAME[name]
        if method.make is None:
            raise ValueError(f"{name} acts on the {method.phase.value}, not on the loss: it has no place in its chain")
        made.append(method.make(method.params(**params)))
    return in_order(made)


def in_order(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Sorted by phase; within a phase as given.

    Raises:
        ValueError: a method is given twice.
    """
    names = [t.name for t in transforms]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ValueError(f"given twice: {', '.join(sorted(twice))}")
    order = list(Phase)
    return tuple(sorted(transforms, key=lambda t: order.index(t.phase)))
