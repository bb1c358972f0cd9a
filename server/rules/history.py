"""What a run was at each step, as rules see it: from the database, or made up by a test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from entrostat.server.rules.needs import ENTROPY, Needs
from entrostat.storage.analysis.stage import stage

SqlValue = bool | float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded step. ``values`` has the signals that are known; none where the step stayed incomplete."""

    step: int
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a rule may look at when a step is evaluated.

    Args:
        run: its name.
        step: the step.
        acts_from: the step from which a change made now can be expected to act: the trainer is ahead of what is known.
        rows: recorded steps, ascending; the last is ``step``. As many as the longest window needs.
        baseline: signal -> its mean over the run's baseline steps; empty while they are not over.
        at_steps: step -> signal -> value there, for ``relative_to: {step: N}``.
        stage: rising or plateau; None where it cannot be said, or no rule asks.
        sql: statement -> its value; None where it gave none.
    """

    run: str
    step: int
    acts_from: int
    rows: Sequence[Row]
    baseline: Mapping[str, float] = field(default_factory=dict)
    at_steps: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    stage: str | None = None
    sql: Mapping[str, SqlValue] = field(default_factory=dict)

    def window(self, signal: str, size: int) -> tuple[list[int], list[float]] | None:
        """Steps and values of the last ``size`` recorded steps; None where one is not known or not recorded yet."""
        if len(self.rows) < size:
            return None
        rows = self.rows[-size:]
        values = [row.values[signal] for row in rows if signal in row.values]
        return ([row.step for row in rows], values) if len(values) == size else None


@dataclass(frozen=True, slots=True)
class History:
    """Recorded steps of a run.

    Args:
        rows: ascending; a stretch without a gap in what was recorded.
        first_rows: the run's baseline steps; ``num_baseline`` of them once they are over.
        num_baseline: how many steps the baseline has.
        at_rows: rows of single steps that rules name.
        curve: (steps, values) of the entropy since the run's beginning, for the stage; None where no rule asks.
        longest: rows that a rule looks back at.
    """

    run: str
    rows: Sequence[Row]
    first_rows: Sequence[Row] = ()
    num_baseline: int = 5
    at_rows: Sequence[Row] = ()
    curve: tuple[np.ndarray, np.ndarray] | None = None
    longest: int = 1

    @classmethod
    def of(cls, run: str, rows: Sequence[Row], num_baseline: int, needs: Needs) -> "History":
        """The history of a run of which ``rows`` is everything."""
        at_rows = [row for row in rows if row.step in needs.steps]
        curve = _curve(rows) if needs.has_stage else None
        return cls(run, rows, rows[:num_baseline], num_baseline, at_rows, curve, needs.longest)

    def at(self, index: int, sql: Mapping[str, SqlValue] | None = None, acts_from: int | None = None) -> Facts:
        """What is known when ``rows[index]`` is evaluated; a change acts at once unless ``acts_from`` is given."""
        step = self.rows[index].step
        return Facts(
            run=self.run,
            step=step,
            acts_from=step if acts_from is None else acts_from,
            rows=self.rows[max(0, index + 1 - self.longest) : index + 1],
            baseline=self._baseline(step),
            at_steps={row.step: row.values for row in self.at_rows if row.step <= step},
            stage=self._stage(step),
            sql=sql or {},
        )

    def _baseline(self, step: int) -> dict[str, float]:
        first = self.first_rows
        if len(first) < self.num_baseline or step <= first[-1].step:
            return {}
        found: dict[str, list[float]] = {}
        for row in first:
            for name, value in row.values.items():
                found.setdefault(name, []).append(value)
        return {name: float(np.mean(values)) for name, values in found.items()}

    def _stage(self, step: int) -> str | None:
        if self.curve is None or not self.first_rows:
            return None
        until = int(np.searchsorted(self.curve[0], step, side="right"))
        from_step = self.first_rows[-1].step
        return stage(self.curve[0][:until], self.curve[1][:until], from_step).stage


def _curve(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    known = [(row.step, row.values[ENTROPY]) for row in rows if ENTROPY in row.values]
    return np.array([step for step, _ in known], np.int64), np.array([value for _, value in known], np.float64)
