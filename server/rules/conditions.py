"""The truth of a condition at a step, and the values behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from entrostat.server.rules.history import Facts
from entrostat.server.rules.truth import Streak, Truth, all_of, any_of, lasted, negated
from entrostat.server.rules.words import label
from entrostat.storage.analysis.floor_forecast import MIN_POINTS, floor_forecast
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
    children,
)


@dataclass(slots=True)
class Reading:
    """One evaluation: streaks before it in ``streaks``, after it in ``after``; what was looked at in ``values``."""

    facts: Facts
    streaks: Mapping[str, Streak]
    after: dict[str, Streak] = field(default_factory=dict)
    values: dict[str, float | str | bool | None] = field(default_factory=dict)

    def truth(self, condition: Condition, path: str) -> Truth:
        """The truth of ``condition``. Everything below it is looked at too: how long it has lasted must be counted."""
        below = [self.truth(child, f"{path}.{key}") for key, child in children(condition)]
        value = self._now(condition, below)
        num = condition.for_steps if isinstance(condition, Lasting) else 1
        if num == 1:
            return value
        answer, self.after[path] = lasted(value, self.streaks.get(path, (0, None)), num)
        return answer

    def _now(self, condition: Condition, below: list[Truth]) -> Truth:
        if isinstance(condition, All):
            return all_of(below)
        if isinstance(condition, Any_):
            return any_of(below)
        if isinstance(condition, Not):
            return negated(below[0])
        if isinstance(condition, StepIs):
            to = condition.step.to
            return condition.step.from_ <= self.facts.step and (to is None or self.facts.step <= to)
        return self._measured(condition)

    def _measured(self, condition: SignalIs | Arrival | StageIs | Sql) -> Truth:
        if isinstance(condition, StageIs):
            self.values["stage"] = self.facts.stage
            return None if self.facts.stage is None else self.facts.stage == condition.stage
        if isinstance(condition, Sql):
            found = self.facts.sql.get(condition.sql)
            self.values[label(condition)] = found
            return None if found is None else _compared(found, condition.above, condition.below)
        if isinstance(condition, Arrival):
            steps = steps_to_arrival(condition, self.facts)
            self.values[label(condition)] = steps
            return None if steps is None else steps <= condition.within_steps
        value = statistic_of(condition, self.facts)
        self.values[label(condition)] = value
        return None if value is None else _compared(value, condition.above, condition.below)


def _compared(value: float | bool, above: float | None, below: float | None) -> bool:
    if above is not None:
        return value > above
    return value < below if below is not None else bool(value)


def statistic_of(condition: SignalIs, facts: Facts) -> float | None:
    """The number that is compared; None where it is unknown."""
    found = facts.window(condition.signal, condition.window)
    if found is None:
        return None
    value = _STATISTICS[condition.statistic or "mean"](np.array(found[0], np.float64), np.array(found[1], np.float64))
    scale = scale_of(condition.signal, condition.relative_to, facts)
    number = None if scale is None else value / scale
    return number if number is not None and np.isfinite(number) else None


def scale_of(signal: str, relative_to: RelativeTo, facts: Facts) -> float | None:
    """What a value is divided by: 1, or the signal's own earlier value; None where that is unknown or 0."""
    if relative_to == "absolute":
        return 1.0
    values = facts.at_steps.get(relative_to.step, {}) if isinstance(relative_to, AtStep) else facts.baseline
    return values.get(signal) or None


def steps_to_arrival(condition: Arrival, facts: Facts) -> float | None:
    """Steps until the trend reaches the level: 0 where it is there, infinite where it does not fall, None: unknown."""
    found = facts.window(condition.signal, condition.window)
    scale = scale_of(condition.signal, condition.relative_to, facts)
    if found is None or scale is None or scale <= 0:
        return None
    steps, values = np.array(found[0], np.int64), np.array(found[1], np.float64)
    level = condition.reaches * scale
    if not np.isfinite(values).all():
        return None
    if np.median(values[-MIN_POINTS:]) <= level:
        return 0.0
    forecast = floor_forecast(steps, values, level, condition.window)
    return float("inf") if forecast.step is None else float(forecast.step - facts.step)


def kendall_tau(steps: np.ndarray, values: np.ndarray) -> float:
    """Kendall's tau-a of value and step: pairs that rise minus pairs that fall, over all pairs; ties count as 0.

    Args:
        steps: [N] ascending, without ties.
        values: [N].
    """
    first, second = np.triu_indices(values.size, 1)
    return float(np.sign(values[second] - values[first]).mean())


def slope(steps: np.ndarray, values: np.ndarray) -> float:
    """Slope of the least-squares line, per step."""
    centred = steps - steps.mean()
    return float(centred @ values / (centred @ centred))


_STATISTICS = {
    "mean": lambda _, values: float(values.mean()),
    "min": lambda _, values: float(values.min()),
    "max": lambda _, values: float(values.max()),
    "last": lambda _, values: float(values[-1]),
    "slope": slope,
    "trend": kendall_tau,
}
