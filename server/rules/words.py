"""Conditions and their values in words: for events, proposals and the reasons of desired states."""

from collections.abc import Mapping

from entrostat.wire.rules.conditions import (
    All,
    Any_,
    Arrival,
    AtStep,
    Condition,
    Lasting,
    Not,
    RelativeTo,
    SignalIs,
    Sql,
    StageIs,
    StepIs,
)
from entrostat.wire.rules.rule import Steps

MAX_CHARS = 1500
"""Of a sentence: a desired state takes 2,000, and approval adds some."""


def label(condition: Condition) -> str:
    """What is looked at, in a few words: ``mean of entropy_mean over 20 steps / baseline``."""
    if isinstance(condition, SignalIs):
        name = condition.signal
        if condition.window > 1:
            name = f"{condition.statistic or 'mean'} of {name} over {condition.window} steps"
        return name + relative(condition.relative_to)
    if isinstance(condition, Arrival):
        return f"steps until {condition.signal}{relative(condition.relative_to)} reaches {condition.reaches:g}"
    if isinstance(condition, Sql):
        return f"sql: {condition.sql}"[:200]
    return "stage" if isinstance(condition, StageIs) else "step"


def relative(relative_to: RelativeTo) -> str:
    """What a signal is divided by."""
    if isinstance(relative_to, AtStep):
        return f" / value at step {relative_to.step}"
    return " / baseline" if relative_to == "baseline" else ""


def words(condition: Condition | Steps) -> str:
    """The condition as a phrase: ``d_collapse above 0.25 for 10 steps``."""
    if isinstance(condition, Steps):
        return f"{condition.steps} steps later"
    said = _phrase(condition)
    if isinstance(condition, Lasting) and condition.for_steps > 1:
        said += f" for {condition.for_steps} steps"
    return said


def _phrase(condition: Condition) -> str:
    if isinstance(condition, All | Any_):
        below = condition.all if isinstance(condition, All) else condition.any
        joined = (" and " if isinstance(condition, All) else " or ").join(words(c) for c in below)
        return f"({joined})" if len(below) > 1 else joined
    if isinstance(condition, Not):
        return f"not ({words(condition.not_)})"
    if isinstance(condition, StepIs):
        to = "" if condition.step.to is None else f" to {condition.step.to}"
        return f"step from {condition.step.from_}{to}"
    if isinstance(condition, StageIs):
        return f"stage {condition.stage}"
    if isinstance(condition, Arrival):
        return f"{label(condition)} at most {condition.within_steps}"
    if condition.above is not None:
        return f"{label(condition)} above {condition.above:g}"
    return label(condition) + (f" below {condition.below:g}" if condition.below is not None else "")


def because(condition: Condition, values: Mapping[str, float | str | bool | None]) -> str:
    """Why a rule fired, with the values behind it."""
    known = ", ".join(f"{name} = {_shown(value)}" for name, value in values.items() if value is not None)
    said = words(condition) + (f": {known}" if known else "")
    return said if len(said) <= MAX_CHARS else said[: MAX_CHARS - 3] + "..."


def _shown(value: float | str | bool) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
