"""The levers of a transformers trainer: learning rate, pause, stop, save; and DLC, which acts where it samples."""

from typing import Any, cast

from transformers import TrainerControl

from entrostat.interventions.dlc import DlcParams
from entrostat.interventions.levers.learning_rate import LearningRateParams
from entrostat.interventions.levers.stop import StopParams
from entrostat.trainer_adapters.board import Board


class Levers:
    """What is on the board beside the loss, done to one trainer at the places where transformers lets it be done."""

    def __init__(self, trainer: Any, board: Board) -> None:
        self.trainer, self.board = trainer, board
        self.dlc: Any = None
        self._own_rates: list[float] = []
        self._has_saved = False

    def at_boundary(self) -> None:
        """A step begins, the same is in force on all ranks."""
        wanted = self.board.active.get("dlc")
        if wanted is not None:
            if self.dlc is None:
                from entrostat.trainer_adapters.sampling.trl_dlc import DlcSampling

                self.dlc = DlcSampling(self.trainer, mu=0.0).install()
            self.dlc.mu = DlcParams(**wanted).mu
        elif self.dlc is not None:
            self.dlc.mu = 0.0

    def before_update(self) -> None:
        """Scale the learning rate for this update alone: whatever the scheduler does next, it does with its own."""
        if "learning_rate" in self.board.active:
            factor = LearningRateParams(**self.board.active["learning_rate"]).factor
            groups = self.trainer.optimizer.param_groups
            self._own_rates = [group["lr"] for group in groups]
            for group in groups:
                group["lr"] = group["lr"] * factor

    def after_update(self) -> None:
        """The scheduler finds the learning rates as it left them."""
        if self._own_rates:
            for group, rate in zip(self.trainer.optimizer.param_groups, self._own_rates, strict=True):
                group["lr"] = rate
            self._own_rates = []

    def at_end(self, control: TrainerControl) -> None:
        """A step has ended: what transformers shall do before the next."""
        if "save_checkpoint" not in self.board.active:
            self._has_saved = False
        elif not self._has_saved:
            control.should_save = self._has_saved = True
        if "stop" in self.board.active:
            control.should_training_stop = True
            control.should_save = control.should_save or StopParams(**self.board.active["stop"]).save

    def remove(self) -> None:
        """Leave the trainer as it was found."""
        if self.dlc is not None:
            self.dlc.remove()
            self.dlc = cast("Any", None)
