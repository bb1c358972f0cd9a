"""What the keys of a trainer's own metrics are in our vocabulary: for a run's record, and to import a dictionary.

Nothing is guessed: a key is one of our signals (perhaps under a condition, which is said), another quantity than the
signal it looks like (which is said, too), the trainer's own business, or unknown.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from entrostat.wire.metric_maps.entry import Dialect, Differs, Entry, Same
from entrostat.wire.metric_maps.trl import TRL
from entrostat.wire.metric_maps.verl import VERL
from entrostat.wire.signals import BY_NAME, USER_PREFIX
from entrostat.wire.tables import MAX_NAME_CHARS

GENERIC = Dialect(name="generic", release="", entries=(), marks=frozenset())
"""No trainer that we know: only our own names mean anything."""
DIALECTS = {d.name: d for d in (TRL, VERL, GENERIC)}
"""Name -> dialect."""

_LONGEST_KEY = MAX_NAME_CHARS - len(USER_PREFIX)
_BY_ITS_NAME = "By its name: that it is the same quantity is the word of whoever logs it."


@dataclass(frozen=True, slots=True)
class Naming:
    """What each of some keys means.

    Args:
        names: the key -> our signal, where they are the same quantity.
        when: of those, the key -> the condition under which the numbers are the same.
        differs: the key -> how it is not the signal that it could be taken for.
        own: keys that the trainer is known to log and that we measure nothing like.
        unmapped: keys that are not known.
    """

    names: dict[str, str] = field(default_factory=dict)
    when: dict[str, str] = field(default_factory=dict)
    differs: dict[str, str] = field(default_factory=dict)
    own: list[str] = field(default_factory=list)
    unmapped: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mapped:
    """A trainer's dictionary in our words.

    Args:
        values: our signal -> its value, in our unit.
        naming: what each key means.
        left_out: keys whose value is no finite number on the host.
        dialect: the name of the dialect the keys were read in.
    """

    values: dict[str, float]
    naming: Naming
    left_out: list[str]
    dialect: str


@dataclass(frozen=True, slots=True)
class Flat:
    """A dictionary without nesting: ``numbers`` by key, and the keys ``left_out`` for want of a finite number."""

    numbers: dict[str, float]
    left_out: list[str]


def mapped(metrics: Mapping[str, Any], dialect: str | None = None) -> Mapped:
    """A trainer's or a tracker's dictionary in our names.

    Args:
        metrics: as logged; may be nested.
        dialect: of ``DIALECTS``; None recognises it by the keys.
    """
    found = flat(metrics)
    spoken = DIALECTS[dialect] if dialect is not None else recognise(found.numbers)
    values: dict[str, float] = {}
    by_rank = sorted(
        ((_rank(entry, spoken), entry, value) for entry, value in _same(found.numbers, spoken)), key=lambda row: row[0]
    )
    for _, entry, value in by_rank:
        values.setdefault(entry.signal, value * entry.factor)
    return Mapped(values, naming(found.numbers, spoken.name), found.left_out, spoken.name)


def naming(keys: Iterable[str], dialect: str) -> Naming:
    """What each key means in a dialect of ``DIALECTS``."""
    said = Naming()
    for key in keys:
        entry = _entry(key, DIALECTS[dialect])
        if entry is None:
            said.unmapped.append(key)
        elif isinstance(entry, Same):
            said.names[key] = entry.signal
            if entry.when:
                said.when[key] = entry.when
        elif isinstance(entry, Differs):
            said.differs[key] = entry.how
        else:
            said.own.append(key)
    return said


def recognise(keys: Iterable[str]) -> Dialect:
    """The dialect that ``keys`` are in, by the keys that only one trainer logs; ``GENERIC`` where there are none."""
    known = tuple(keys)
    best = max(DIALECTS.values(), key=lambda d: d.num_marks(known))
    return best if best.num_marks(known) else GENERIC


def flat(metrics: Mapping[str, Any]) -> Flat:
    """Nested keys joined by ``/``; numbers and arrays of one element as floats.

    A tensor on an accelerator is left out: reading it would make the training thread wait for the device.
    """
    found = Flat({}, [])
    _flatten(metrics, "", found)
    return found


def _flatten(metrics: Mapping[str, Any], prefix: str, found: Flat) -> None:
    # This runs on the training thread: a plain float under a plain name, as nearly all are, is asked nothing else.
    for name, value in metrics.items():
        key = name if not prefix and type(name) is str else f"{prefix}{name}"
        if len(key) > _LONGEST_KEY or not key.isascii():
            key = _clean(key)
        if type(value) is float and math.isfinite(value):
            found.numbers[key] = value
        elif isinstance(value, Mapping):
            _flatten(value, f"{key}/", found)
        elif (number := _number(value)) is not None:
            found.numbers[key] = number
        else:
            found.left_out.append(key)


def _clean(key: str) -> str:
    """``key`` as a server takes it: one that is endless, or no text, would have the whole batch refused."""
    return key[:_LONGEST_KEY].encode(errors="replace").decode()


def _number(value: Any) -> float | None:
    if isinstance(value, np.ndarray):
        value = value.item() if value.size == 1 else None
    elif hasattr(value, "numel"):  # a tensor; torch itself is not imported here
        value = value.item() if value.device.type == "cpu" and value.numel() == 1 else None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int beyond every float
        return None
    return number if math.isfinite(number) else None


def _entry(key: str, dialect: Dialect) -> Entry | None:
    entry = dialect.entry(key)
    if entry is None and key in BY_NAME:
        return Same(key, key, _BY_ITS_NAME)
    return entry


def _same(numbers: Mapping[str, float], dialect: Dialect) -> Iterable[tuple[Same, float]]:
    for key, value in numbers.items():
        if isinstance(entry := _entry(key, dialect), Same):
            yield entry, value


def _rank(entry: Same, dialect: Dialect) -> int:
    """Its place in the dialect's table; what is there goes before what only has our name."""
    return dialect.entries.index(entry) if entry in dialect.entries else len(dialect.entries)
