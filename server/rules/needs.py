"""What rules look at, so that no more is read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from entrostat.wire.rules.conditions import Arrival, AtStep, RelativeTo, SignalIs, Sql, StageIs, parts
from entrostat.wire.rules.rule import AnyRule, HoldRule

ENTROPY = "entropy_mean"
"""What the stage is read from."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a set of rules looks at.

    Args:
        signals: by name.
        longest: recorded steps that they look back at.
        steps: those that values are relative to.
        sql: statements.
        has_stage: whether any asks for the stage.
    """

    signals: tuple[str, ...] = ()
    longest: int = 1
    steps: tuple[int, ...] = ()
    sql: tuple[str, ...] = ()
    has_stage: bool = False


def needs_of(rules: Iterable[AnyRule]) -> Needs:
    """What ``rules`` look at."""
    signals: set[str] = set()
    steps: set[int] = set()
    sql: dict[str, None] = {}
    longest, has_stage = 1, False
    for rule in rules:
        for signal, window, relative_to in _looks(rule):
            signals.add(signal)
            longest = max(longest, window)
            if isinstance(relative_to, AtStep):
                steps.add(relative_to.step)
        for condition in () if isinstance(rule, HoldRule) else (p for c in rule.conditions for _, p in parts(c)):
            if isinstance(condition, Sql):
                sql[condition.sql] = None
            has_stage = has_stage or isinstance(condition, StageIs)
    if has_stage:
        signals.add(ENTROPY)
    return Needs(tuple(sorted(signals)), longest, tuple(sorted(steps)), tuple(sql), has_stage)


def _looks(rule: AnyRule) -> Iterator[tuple[str, int, RelativeTo]]:
    """(signal, window, relative to) of each thing that a rule measures."""
    if isinstance(rule, HoldRule):
        yield rule.hold.signal, rule.hold.window, rule.hold.relative_to
        return
    for whole in rule.conditions:
        for _, part in parts(whole):
            if isinstance(part, SignalIs | Arrival):
                yield part.signal, part.window, part.relative_to
