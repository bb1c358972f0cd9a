"""What is in force in this process: the controller puts it up, the loss and the levers read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from entrostat.interventions.chain import chain
from entrostat.interventions.methods import BY_NAME
from entrostat.interventions.transform import State, Transform


@dataclass(slots=True)
class Board:
    """The interventions in force.

    Args:
        active: name -> its parameters.
        transforms: those of them that act on the loss, in the loss's order.
        states: what each remembers from batch to batch.
        counts: what they tell of themselves since the step began: sums, on their device.
        failure: why the loss's transforms were taken down since the last step, name -> reason.
    """

    active: dict[str, dict[str, Any]] = field(default_factory=dict)
    transforms: tuple[Transform, ...] = ()
    states: dict[str, State] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)
    failure: str | None = None

    def put(self, active: Mapping[str, Mapping[str, Any]]) -> None:
        """These are in force from now on.

        Raises:
            ValueError: they cannot be combined, or a parameter is out of bounds; nothing has changed then.
        """
        self.transforms = chain({name: params for name, params in active.items() if BY_NAME[name].make is not None})
        self.active = {name: dict(params) for name, params in active.items()}
        self.states = {name: state for name, state in self.states.items() if name in active}

    def count(self, counts: Mapping[str, Tensor]) -> None:
        """Add what a batch's transforms tell of themselves."""
        for name, value in counts.items():
            self.counts[name] = self.counts.get(name, 0) + value.detach()

    def take_counts(self) -> dict[str, float]:
        """The sums since the last time, read back from the device."""
        counts, self.counts = self.counts, {}
        return {name: float(value) for name, value in counts.items()}

    def fail(self, reason: str) -> None:
        """Take the transforms down: a method that raises must not raise again in every batch."""
        self.transforms, self.failure = (), reason
