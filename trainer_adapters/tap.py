"""What is tapped of a transformers trainer, as the step boundary needs it: one protocol, a class for each kind."""

from typing import Any, Protocol

from entrostat.probe.definitions import Settings
from entrostat.probe.text.decode import Texts
from entrostat.trainer_adapters.board import Board
from entrostat.trainer_adapters.session import Session


class Tap(Protocol):
    """The taps on one trainer. Without a session (before ``train``, after ``detach``) they only pass on.

    Args:
        trainer: of transformers.
        board: the interventions in force.
        session: where what is observed goes; the step boundary sets it.
    """

    trainer: Any
    board: Board
    session: Session | None

    @property
    def temperature(self) -> float:
        """What the trainer divides the logits by; signals describe that policy."""

    def install(self) -> None:
        """Put the taps in place; they act on the next batch."""

    def remove(self) -> None:
        """Leave the trainer as it was found."""

    def refusals(self) -> dict[str, str]:
        """The interventions that this trainer cannot have, and why."""

    def about_interventions(self) -> dict[str, Any]:
        """For the run's record."""

    def definitions(self, correct_at: float) -> Settings:
        """What the signals' definitions take from this trainer's settings."""

    def texts(self) -> Texts | None:
        """Of a copy of the trainer's tokenizer; None where it has none.

        Raises:
            TypeError: what it has is no tokenizer.
        """

    def take_counts(self) -> dict[str, float]:
        """What the interventions tell of the step that ended."""
