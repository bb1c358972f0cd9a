"""What a map says about one of a trainer's keys, and what makes a trainer's dictionary recognisable."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from entrostat.wire.signals import BY_NAME


@dataclass(frozen=True, slots=True)
class Same:
    """A key that is one of our signals.

    Args:
        key: the trainer's; ``*`` stands for any part that changes.
        signal: ours.
        when: the condition under which the two numbers are the same; empty where they always are.
        factor: the trainer's number times this is ours.
    """

    key: str
    signal: str
    when: str = ""
    factor: float = 1.0

    @property
    def verdict(self) -> str:
        """For a table that people read."""
        same = "yes" if self.factor == 1.0 else f"times {self.factor:g}"
        return f"{same}, if: {self.when}" if self.when else same


@dataclass(frozen=True, slots=True)
class Differs:
    """A key that looks like one of our signals and is another quantity.

    Args:
        key: the trainer's; ``*`` stands for any part that changes.
        signal: ours that it could be taken for.
        how: what the trainer's number is.
    """

    key: str
    signal: str
    how: str

    @property
    def verdict(self) -> str:
        """For a table that people read."""
        return f"no: {self.how}"


@dataclass(frozen=True, slots=True)
class Own:
    """A key that we know and measure nothing like. ``*`` stands for any part that changes."""

    key: str
    signal: ClassVar[None] = None
    verdict: ClassVar[str] = "its own: nothing of ours is like it"


Entry = Same | Differs | Own


@dataclass(frozen=True)
class Dialect:
    """A trainer's way of naming its metrics.

    Args:
        name: as in ``entrostat signals --trainer``.
        release: the release whose source was read.
        entries: every key; where two are the same signal, the first that a dictionary has is taken.
        marks: keys that no other trainer logs; a dictionary with one of them is in this dialect.
        training: prefixes that trackers put before the keys of training.
        evaluation: prefixes of numbers measured in an evaluation, which are never signals of a training step.

    Raises:
        ValueError: a key is listed twice, or a signal is not in the vocabulary.
    """

    name: str
    release: str
    entries: tuple[Entry, ...]
    marks: frozenset[str]
    training: tuple[str, ...] = ()
    evaluation: tuple[str, ...] = ()
    _exact: dict[str, Entry] = field(init=False, repr=False, compare=False)
    _patterns: tuple[tuple[re.Pattern[str], Entry], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        keys = [e.key for e in self.entries]
        if twice := sorted({k for k in keys if keys.count(k) > 1}):
            raise ValueError(f"{self.name}: listed twice: {twice}")
        if unknown := sorted({e.signal for e in self.entries if not isinstance(e, Own)} - set(BY_NAME)):
            raise ValueError(f"{self.name}: no such signals: {unknown}")
        object.__setattr__(self, "_exact", {e.key: e for e in self.entries if "*" not in e.key})
        object.__setattr__(self, "_patterns", tuple((_pattern(e.key), e) for e in self.entries if "*" in e.key))

    def entry(self, key: str) -> Entry | None:
        """What is known about ``key`` (as the trainer or a tracker writes it); None: it is not this trainer's."""
        if (found := self._find(key)) is not None or (found := self._prefixed(key)) is not None:
            return found
        # W&B joins nested keys by dots.
        return self.entry(key.replace(".", "/")) if "." in key else None

    def num_marks(self, keys: Iterable[str]) -> int:
        """How many of ``keys`` only this trainer logs."""
        slashed = [key.replace(".", "/") for key in keys]
        return len({key.removeprefix(prefix) for key in slashed for prefix in ("", *self.training)} & self.marks)

    def _prefixed(self, key: str) -> Entry | None:
        for prefix in self.evaluation:
            if key.startswith(prefix):
                base = self._find(key.removeprefix(prefix))
                if base is None or isinstance(base, Own):
                    return Own(key)
                return Differs(key, base.signal, f"Of an evaluation; {base.signal} is of a training step.")
        for prefix in self.training:
            if key.startswith(prefix) and (found := self._find(key.removeprefix(prefix))) is not None:
                return found
        return None

    def _find(self, key: str) -> Entry | None:
        if key in self._exact:
            return self._exact[key]
        return next((entry for pattern, entry in self._patterns if pattern.fullmatch(key)), None)


def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(".+".join(re.escape(part) for part in key.split("*")))
