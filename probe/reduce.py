"""A step's captures into its tables: what the background thread does for a step."""

import logging
import time
from dataclasses import dataclass, field, replace

import pyarrow as pa

from entrostat.probe.absences import absences, inputs
from entrostat.probe.capture import Capture
from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.rows import (
    cell_rows,
    event_rows,
    histogram_rows,
    metric_rows,
    profile_rows,
    sequence_rows,
    token_rows,
)
from entrostat.probe.signals import Parts, signals_of
from entrostat.probe.step import StepData, gather
from entrostat.probe.text.reader import Reader
from entrostat.wire.mergeable import Part
from entrostat.wire.signals import Need

log = logging.getLogger("entrostat")

Tables = dict[str, pa.Table]


@dataclass
class Reducer:
    """Makes the tables of steps, one after the other, on one thread.

    Args:
        settings: what the signals' definitions depend on.
        num_candidates: how many candidates a token row keeps.
        says_absences: whether an event tells which signals are absent and why; one rank's is enough.
        reader: reads the responses' texts, where there is a tokenizer.
    """

    settings: Settings = field(default_factory=Settings)
    num_candidates: int = 3
    says_absences: bool = True
    reader: Reader | None = None
    _known_inputs: set[frozenset[Need]] = field(default_factory=set)
    _said: set[tuple[str, str]] = field(default_factory=set)

    def __call__(self, step: int, captures: list[Capture], rollouts: list[Rollout] | None, more: Parts) -> Tables:
        """The tables of one step.

        Args:
            step: the optimizer step.
            captures: its micro-batches; without one there is only ``more``.
            rollouts: the generations it was the first to use; None: the responses carry their own rewards.
            more: further parts, such as the step's cost.
        """
        if not captures:
            return {"step_metric": metric_rows(step, more)}
        began = time.perf_counter()
        data = gather(captures)
        if rollouts is None:
            rollouts = []
            if data.reward is not None and data.prompt is not None:
                rollouts = [Rollout(data.reward, data.prompt)]
        data, events = self._read(step, data)
        tables = self._tables(step, data)
        found = signals_of(data, rollouts, self.settings)
        if self.says_absences and (event := self._absent(step, data, rollouts)) is not None:
            events.append(event)
        if events:
            tables["event"] = pa.concat_tables(events)
        cost = {"reduce_ms": Part("max", ((time.perf_counter() - began) * 1e3,))}
        return {"step_metric": metric_rows(step, found | more | cost)} | tables

    def _read(self, step: int, data: StepData) -> tuple[StepData, list[pa.Table]]:
        """The step with what its texts say. A tokenizer that fails costs the step its texts, not its other signals."""
        if self.reader is None:
            return data, []
        try:
            return replace(data, reading=self.reader.read(data)), []
        except Exception as error:  # a tokenizer may be anything with a decode of its own
            message = f"reading texts failed: {type(error).__name__}: {error}"
            if ("warning", message) in self._said:
                return data, []
            self._said.add(("warning", message))
            log.warning("%s (training goes on)", message, exc_info=True)
            return data, [event_rows("warning", message, step)]

    def _tables(self, step: int, data: StepData) -> Tables:
        tables = {
            "histogram": histogram_rows(step, data),
            "sequence": sequence_rows(step, data),
            "token": token_rows(step, data, self.num_candidates),
        }
        if "positions" not in self.settings.without:
            tables["profile"] = profile_rows(step, data)
        if self.settings.num_ranks > 1 and "covariance" not in self.settings.without:
            tables["cell"] = cell_rows(step, data)
        return tables

    def _absent(self, step: int, data: StepData, rollouts: list[Rollout]) -> pa.Table | None:
        """An event for what was not said before; None where there is nothing new."""
        there = inputs(data, rollouts)
        if there in self._known_inputs:
            return None
        self._known_inputs.add(there)
        new: dict[str, list[str]] = {}
        for reason, names in absences(there, self.settings).items():
            if fresh := [name for name in names if (reason, name) not in self._said]:
                new[reason] = fresh
                self._said.update((reason, name) for name in fresh)
        if not new:
            return None
        message = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in new.items())
        return event_rows("absent", f"absent signals: {message}", step, new)
