"""The names a rule may use: signals, interventions and their parameters. A wrong one is refused with the nearest."""

import difflib
from collections.abc import Iterable

from entrostat.wire.errors import BadParameter
from entrostat.wire.interventions import BY_NAME as INTERVENTIONS
from entrostat.wire.interventions import ParamValue, named
from entrostat.wire.signals import BY_NAME as SIGNALS
from entrostat.wire.signals import USER_PREFIX

FROM_THE_NEXT_STEP = {"d_entropy": "use entropy_mean with window: 10 and statistic: slope"}
"""Signals that are not known yet when their step is evaluated, and what to say in their place."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt ``name``: ``; did you mean kl_cov?``, or nothing where none is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""


def known_signal(name: str) -> str:
    """``name``, if a rule may read it: a signal of the vocabulary, or anything the trainer logs (``trainer/...``).

    Raises:
        ValueError: it is neither; with the nearest name.
    """
    if name in FROM_THE_NEXT_STEP:
        raise ValueError(f"{name} of a step is known only after the next one: {FROM_THE_NEXT_STEP[name]}")
    if name in SIGNALS or (name.startswith(USER_PREFIX) and len(name) > len(USER_PREFIX)):
        return name
    hint = nearest(name, SIGNALS)
    raise ValueError(f"unknown signal {name!r}{hint} (entrostat signals lists them; what the trainer logs itself is "
                     f"{USER_PREFIX}<name>)")  # fmt: skip


def known_intervention(name: str) -> str:
    """``name``, if there is such an intervention. Raises ValueError with the nearest name."""
    if name not in INTERVENTIONS:
        hint = nearest(name, INTERVENTIONS)
        raise ValueError(f"unknown intervention {name!r}{hint} (entrostat interventions lists them)")
    return name


def known_params(intervention: str, params: dict[str, ParamValue]) -> dict[str, ParamValue]:
    """``params`` as the catalogue converts them; those left out stay out.

    Raises:
        ValueError: an unknown parameter, with the nearest name, or a value out of bounds.
    """
    declared = named(intervention)
    names = [p.name for p in declared.params]
    for name in params:
        if name not in names:
            raise ValueError(f"{intervention} has no parameter {name!r}{nearest(name, names)} (it has "
                             f"{', '.join(names) or 'none'})")  # fmt: skip
    try:
        return declared.checked(params)
    except BadParameter as error:
        raise ValueError(str(error)) from None
