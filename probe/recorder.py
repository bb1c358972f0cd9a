"""Collects what a step leaves behind and hands it, as work for the background thread, to the sender."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from entrostat.probe.capture import Capture
from entrostat.probe.definitions import Rollout
from entrostat.probe.metric_record import MetricRecord, naming_rows
from entrostat.probe.reduce import Reducer, Tables
from entrostat.probe.rows import event_rows, metric_rows
from entrostat.probe.signals import Parts
from entrostat.probe.stored_step import document
from entrostat.wire.handover import Bytes, Handover, Record, Span
from entrostat.wire.mergeable import Part
from entrostat.wire.metric_names import Flat, flat
from entrostat.wire.signals import INTERVENTION_PREFIX, USER_PREFIX

log = logging.getLogger("entrostat")


class Sink(Protocol):
    """Where a recorder puts its work: the sender, or a list in a test. Never waits and never raises."""

    @property
    def handover(self) -> Handover | None:
        """Where a step's copies outlive the process; None: they stay in memory."""

    def put(
        self, reduce: Callable[[], Tables], nbytes: int, what: str = "step", *, record: Record | None = None
    ) -> None:
        """Take work to be done later, of about ``nbytes``; ``record`` is what ``handover`` has sealed of it."""


@dataclass
class Recorder:
    """One rank's record of a run. Used from the training thread alone; its methods cost microseconds.

    Args:
        sink: takes the work.
        reducer: makes a step's tables, on the sink's thread.
        rewards_from_responses: rewards come with the responses of the step; else by ``add_rollout``, once a generation.
        metric_record: which of the user's own metrics have been explained in the run's record.
    """

    sink: Sink
    reducer: Reducer = field(default_factory=Reducer)
    rewards_from_responses: bool = False
    metric_record: MetricRecord = field(default_factory=MetricRecord)
    _captures: list[Capture] = field(default_factory=list)
    _rollouts: list[Rollout] = field(default_factory=list)
    _began: float | None = None
    _own_s: float = 0.0

    def keep(self, pieces: Sequence[Bytes]) -> Span | None:
        """Copy bytes of the current step to where they outlive the process; None: it cannot be done."""
        handover = self.sink.handover
        return None if handover is None else handover.keep(pieces)

    def add(self, micro_batch: Capture) -> None:
        """A micro-batch of the current step."""
        self._captures.append(micro_batch)

    def add_rollout(self, rollout: Rollout) -> None:
        """A generation that the current step is the first to use."""
        self._rollouts.append(rollout)

    def spent(self, seconds: float) -> None:
        """Time of the training thread that went into the probe."""
        self._own_s += seconds

    def begin_step(self) -> None:
        """Start the step's clock; without it a step lasts since the end of the one before."""
        self._began = time.perf_counter()

    def end_step(
        self, step: int, metrics: Mapping[str, Any] | None = None, counts: Mapping[str, float] | None = None
    ) -> None:
        """Close the step: everything added since the last one becomes its rows.

        Args:
            step: the optimizer step, as the trainer counts.
            metrics: the user's own numbers of this step, stored as ``trainer/<name>``.
            counts: what the interventions tell of this rank's tokens, stored as ``intervention/<name>``; they add up.
        """
        now = time.perf_counter()
        cost = self._cost(now)
        captures, self._captures = self._captures, []
        rollouts, self._rollouts = self._rollouts, []
        self._began, self._own_s = now, 0.0
        users = flat(metrics or {})
        told = {f"{INTERVENTION_PREFIX}{name}": Part("sum", (value,)) for name, value in (counts or {}).items()}
        known = None if self.rewards_from_responses else rollouts
        more = cost | told
        captures = [c.kept_by(self.keep) for c in captures]
        record = self._sealed(step, captures, known, more, users.numbers)

        def work() -> Tables:  # the training thread does not make what the sink's can
            return self.reducer(step, captures, known, more | user_parts(users.numbers))

        self.sink.put(work, sum(c.nbytes for c in captures) + 1024, record=record)
        self._explain(step, users)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """The user's own numbers of a step that may have ended already; what is not a number is left out."""
        users = flat(metrics)
        if numbers := users.numbers:
            self.sink.put(lambda: {"step_metric": metric_rows(step, user_parts(numbers))}, 100 * len(numbers), "log")
        self._explain(step, users)

    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        """Something that happened, for the run's record."""
        rows = event_rows(kind, message, step, detail or None)
        self.sink.put(lambda: {"event": rows}, rows.nbytes, "event")

    def _sealed(
        self,
        step: int,
        captures: list[Capture],
        rollouts: list[Rollout] | None,
        more: Parts,
        users: Mapping[str, float],
    ) -> Record | None:
        """The step on disk, from where another process can go on; None where it is in memory alone.

        Numbers alone are: the background thread has them in a file within a millisecond.
        """
        handover = self.sink.handover
        if handover is None or not captures:
            return None
        said = document(step, captures, rollouts, more, users, self.reducer, self.keep) if handover.is_on else None
        return handover.seal(said)

    def _explain(self, step: int, users: Flat) -> None:
        """What keys that were not seen before mean, as an event; worked out on the background thread."""
        new, dialect = self.metric_record.first_seen(users), self.metric_record.dialect
        if num_new := len(new.numbers) + len(new.left_out):
            self.sink.put(lambda: {"event": naming_rows(step, new, dialect)}, 200 * num_new, "event")

    def _cost(self, now: float) -> Parts:
        cost = {"wall_time_s": Part("max", (time.time(),)), "probe_ms": Part("max", (self._own_s * 1e3,))}
        if self._began is not None and now > self._began:
            step_s = now - self._began
            cost |= {"step_s": Part("max", (step_s,)), "probe_share": Part("mean", (1.0, self._own_s / step_s))}
        return cost


def user_parts(numbers: Mapping[str, float]) -> Parts:
    """The user's own numbers as parts, under ``trainer/``."""
    return {f"{USER_PREFIX}{name}": Part("last", (value,)) for name, value in numbers.items()}
