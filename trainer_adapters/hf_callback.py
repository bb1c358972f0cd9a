"""Step boundaries of a transformers trainer: where a session begins, each step ends, and what is in force changes."""

import inspect
import logging
from typing import Any

import torch.distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from entrostat.trainer_adapters import run_info
from entrostat.trainer_adapters.boundary import switch
from entrostat.trainer_adapters.controller import Controller
from entrostat.trainer_adapters.hf_levers import Levers
from entrostat.trainer_adapters.session import Options, Place, Session, from_environment
from entrostat.trainer_adapters.tap import Tap
from entrostat.wire.errors import AttachError, EntrostatError
from entrostat.wire.messages import Mode, Permissions

log = logging.getLogger("entrostat")

_STATE_KEY = "entrostat"


class StepBoundary(TrainerCallback):  # type: ignore[misc]  # transformers is not typed for us
    """Opens the session when training begins, closes each step, ends it; one for each attached trainer."""

    def __init__(self, tap: Tap, options: Options, permissions: Permissions) -> None:
        self.tap, self.options, self.permissions = tap, options, permissions
        self.trainer_name = f"{type(tap.trainer).__module__.split('.')[0]}.{type(tap.trainer).__name__}"
        self.run_id = options.run or run_info.new_run_id(self.trainer_name)
        self.session: Session | None = None
        self.last_session: Session | None = None
        self.has_failed = False
        self.levers = Levers(tap.trainer, tap.board)
        self.controller: Controller | None = None

    def begin(self, state: TrainerState) -> None:
        """Open the session, at a step boundary: at the start, after a resume, or in the middle of a run.

        Where the spool cannot be used, that is said once and training goes on unwatched.
        """
        try:
            self._begin(state)
        except (EntrostatError, OSError, ValueError) as error:
            log.error("not watching this run: %s (training goes on)", error)
            self.has_failed = True

    def _begin(self, state: TrainerState) -> None:
        place, in_force = self._place(state), _kept(state, "controller")
        self.run_id = place.run_id
        # In the trainer's own state, which it writes into every checkpoint: a resumed run finds its name there.
        state.stateful_callbacks[_STATE_KEY] = {"args": {}, "attributes": {"run_id": place.run_id}}
        trainer = self.tap.trainer
        self.session = Session(
            self.options,
            place,
            self.trainer_name,
            {
                "training": run_info.plain(trainer.args.to_dict()),
                "model": run_info.plain(trainer.model.config.to_dict()),
            },
            self.tap.definitions(self.options.correct_at),
            {"head": self.options.head, "temperature": self.tap.temperature, **self.tap.about_interventions()},
            self.permissions,
        )
        self.tap.session = self.session
        self.controller = Controller(self.permissions, self.tap.board, self.session.say)
        if in_force is not None:
            with self.session.guarded("restoring the interventions of a checkpoint"):
                self.controller.load_state_dict(in_force)
        if "text" not in self.options.without:
            with self.session.guarded("copying the tokenizer"):
                if (texts := self.tap.texts()) is not None:
                    self.session.read_texts(texts)
        self.session.recorder.metric_record.dialect = "trl"
        self.session.recorder.begin_step()

    def _place(self, state: TrainerState) -> Place:
        accelerator = self.tap.trainer.accelerator
        run_id = self.run_id
        if (kept := _kept(state, "run_id")) is not None and not self.options.run:
            run_id = kept
        shared = [run_id, run_info.new_id()]
        if accelerator.num_processes > 1 and torch.distributed.is_initialized():
            # The one time ranks speak for our sake: all must name the same run.
            torch.distributed.broadcast_object_list(shared, src=0)
        return Place(
            run_id=shared[0],
            session_id=shared[1],
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
            resume_step=state.global_step if state.global_step > 0 else None,
        )

    def end(self, state: TrainerState) -> None:
        """Close the session, sending what is left."""
        if self.session is not None:
            self.run_id = self.session.run_id
            self.session.end(state.global_step)
            self.last_session = self.session
        self.session = self.tap.session = None

    # Events of transformers -------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training begins, or begins again from a checkpoint."""
        if self.session is None:
            self.begin(state)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An optimizer step begins; attached in the middle of a run, the session begins here."""
        if self.session is None and not self.has_failed:
            self.begin(state)
        if self.session is not None and self.controller is not None and self.permissions.mode != Mode.observe:
            with self.session.guarded("switching interventions"):
                switch(self.session, self.controller, state.global_step + 1)
                self.levers.at_boundary()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Gradients are there, the optimizer has not moved yet."""
        self.levers.before_update()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The optimizer has moved, the scheduler not yet."""
        self.levers.after_update()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An optimizer step has ended; ``global_step`` counts it already."""
        if self.session is None:
            return
        with self.session.guarded("closing a step"):
            self.session.recorder.end_step(state.global_step, counts=self.tap.take_counts())
        if self.controller is not None and self.permissions.mode != Mode.observe:
            state.stateful_callbacks[_STATE_KEY]["attributes"]["controller"] = self.controller.state_dict()
            self.levers.at_end(control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """The trainer's own metrics. Rank 0 has them all."""
        if self.session is not None and state.is_world_process_zero:
            with self.session.guarded("reading the trainer's metrics"):
                self.session.recorder.log(state.global_step, logs or {})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training has ended."""
        self.end(state)


def _kept(state: TrainerState, name: str) -> Any:
    """What a checkpoint that this run goes on from has kept under ``name``, or None."""
    kept = (state.stateful_callbacks or {}).get(_STATE_KEY)
    return kept["attributes"].get(name) if kept is not None and state.global_step > 0 else None


class Callback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed for us
    """``callbacks=[entrostat.Callback()]``: sugar for ``entrostat.attach(trainer)``, with the same options.

    transformers hands a callback everything but the trainer, so it is found on the call stack when training begins.
    """

    def __init__(self, **options: Any) -> None:
        from_environment(**options)  # a wrong option is said here, not hours later
        self.options = options
        self.handle: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach to the trainer that is beginning to train."""
        from entrostat.trainer_adapters.attach import attach, attached

        trainer = _calling_trainer()
        if attached(trainer) is None:
            self.handle = attach(trainer, **self.options)
            self.handle.boundary.begin(state)


def _calling_trainer() -> Any:
    from transformers import Trainer

    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), Trainer):
            return found
        frame = frame.f_back
    raise AttachError("entrostat.Callback found no trainer on the call stack: use entrostat.attach(trainer) instead")
