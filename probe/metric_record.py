"""The run's record of what the user's own metrics mean in our vocabulary: an event for keys seen for the first time."""

from dataclasses import dataclass, field

import pyarrow as pa

from entrostat.probe.rows import event_rows
from entrostat.wire.metric_names import DIALECTS, GENERIC, Flat, naming, recognise

_MAX_KEYS = 1000
_MAX_EVENTS = 20
"""How much of a session is explained; a loop that invents new keys every step would fill the record."""


@dataclass
class MetricRecord:
    """Which keys a session has logged so far. Used on the training thread: costs a set look-up a key.

    Args:
        dialect: of ``wire/metric_names.py``, where the adapter knows its trainer; else recognised by the keys.
    """

    dialect: str | None = None
    _numbers: set[str] = field(default_factory=set)
    _left_out: set[str] = field(default_factory=set)
    _num_events: int = 0

    def first_seen(self, metrics: Flat) -> Flat:
        """What of ``metrics`` is new to this session and still worth explaining.

        A key that had no number at first (a reward of a generation nobody scored) is new again with its first one.
        """
        if metrics.numbers.keys() <= self._numbers and not metrics.left_out:  # as at nearly every step
            return Flat({}, [])
        room = max(0, _MAX_KEYS - len(self._numbers) - len(self._left_out)) if self._num_events < _MAX_EVENTS else 0
        numbers = [key for key in metrics.numbers if key not in self._numbers][:room]
        left_out = [key for key in metrics.left_out if key not in self._left_out][: room - len(numbers)]
        self._numbers.update(numbers)
        self._left_out.update(left_out)
        self._num_events += bool(numbers or left_out)
        if numbers and self.dialect is None and (found := recognise(numbers)) is not GENERIC:
            self.dialect = found.name
        return Flat({key: metrics.numbers[key] for key in numbers}, left_out)


def naming_rows(step: int, metrics: Flat, dialect: str | None) -> pa.Table:
    """The ``event`` row that says what each key of ``metrics`` is, and which had no number to keep."""
    known = DIALECTS[dialect or GENERIC.name]
    said = naming(metrics.numbers, known.name)
    detail = {
        "dialect": known.name,
        "mapped": said.names,
        "when": said.when,
        "differs": said.differs,
        "own": said.own,
        "unmapped": said.unmapped,
        "left_out": metrics.left_out,
    }
    message = (
        f"The trainer's own metrics ({known.name}): {len(said.names)} are signals of ours, {len(said.differs)} look "
        f"like one and differ, {len(said.own)} are its own, {len(said.unmapped)} are not known, "
        f"{len(metrics.left_out)} are no numbers"
    )
    return event_rows("metric_names", message, step, detail)
