"""DLC inside TRL's GRPOTrainer and RLOOTrainer: the memory beside the policy while it samples, and taught after a step.

Two methods are wrapped on the trainer's instance. ``_generate_single_turn`` gives the policy's ``generate`` one more
logits processor, for the length of the call; ``_prepare_inputs`` notes the rollouts that a step trains on, and at the
step's end the memory learns them.

**The ratio.** With DLC the responses come from pi_sample = softmax(f_theta - mu * f_phi), not from pi_theta. The paper
updates with the advantages as they are and names no correction (Algorithm 1, line 20), so there is none here. TRL's old
log-probs are the policy's own (ratio 1 where a rollout serves one update): the update is the policy gradient as if the
policy had drawn these responses, which is the method ("decoupled sampling"), and not an unbiased gradient of the
expected reward.
"""

import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as Arguments

from entrostat.interventions.dlc import DlcParams
from entrostat.trainer_adapters.hooks import DLC
from entrostat.trainer_adapters.sampling.memory_lm import MemoryLM, Rollouts, shared_by_first_rank
from entrostat.trainer_adapters.sampling.memory_logits import MemoryLogits
from entrostat.trainer_adapters.sampling.smaller import smaller_memory
from entrostat.trainer_adapters.sampling.trl_generation import Guarded, check_generation, one_more_processor

if TYPE_CHECKING:
    from trl import GRPOTrainer

log = logging.getLogger("entrostat")

_WRAPPED = ("_generate_single_turn", "_prepare_inputs")
_FILE = "entrostat_dlc_memory.pt"


class DlcSampling(TrainerCallback):  # type: ignore[misc]  # transformers is not typed for us
    """A trainer whose training rollouts are sampled with DLC; evaluation stays the policy's own.

    With ``mu`` 0 nothing of this runs: the memory is neither asked nor taught, and training is the same to the bit.
    Where a rollout serves several updates, the memory learns it at each of them, as the policy does; the shares stay
    the same. What TRL masks out (tool results, truncated responses if so set) is not learned.

    Args:
        trainer: a ``GRPOTrainer`` or ``RLOOTrainer`` that generates with transformers.
        mu: weight of the memory, 0 to 2; may be set while training runs and acts from the next generation on. With
            several ranks set it on all of them between the same two steps.
        memory: f_phi; by default ``smaller_memory`` of the policy's configuration.

    Raises:
        AttachError: a way of generating that a memory cannot be put into, or private names of TRL that have moved.
        ValueError: mu out of bounds, another vocabulary, or no default memory for this architecture.
    """

    def __init__(self, trainer: "GRPOTrainer", mu: float = 0.5, memory: MemoryLM | None = None) -> None:
        check_generation(trainer, [DLC])
        self.trainer = trainer
        self.failure: str | None = None
        self.mu = mu
        self.memory = (memory or smaller_memory(trainer.model.config)).to(trainer.accelerator.device)
        self.memory.copy_from_first_rank()
        self.memory_loss: float | None = None
        self._is_installed = self._is_off = False
        self._found: dict[str, Any] = {}
        self._rollouts: list[Rollouts] = []
        found = trainer.model.config.get_text_config().vocab_size
        if self.memory.vocab_size != found:
            raise ValueError(
                f"the memory has {self.memory.vocab_size} tokens and the policy {found}: they must be the same tokens"
            )

    @property
    def mu(self) -> float:
        """The memory's weight; 0 samples from the policy. Once it has failed it is 0, until it is installed again."""
        return self._mu if self.failure is None else 0.0

    @mu.setter
    def mu(self, value: float) -> None:
        self._mu = DlcParams(mu=value).mu

    # Installing and removing ------------------------------------------------------------------------------------

    def install(self) -> "DlcSampling":
        """Act from the next generation on. In the middle of a run that has just resumed, its memory is taken up."""
        if self._is_installed:
            return self
        self._is_installed, self._is_off, self.failure = True, False, None
        for name in _WRAPPED:
            self._found[name] = self.trainer.__dict__.get(name)
            original = getattr(self.trainer, name)
            setattr(
                self.trainer, name, functools.wraps(original)(functools.partial(getattr(self, f"_on{name}"), original))
            )
        self.trainer.add_callback(self)
        if self.memory.num_updates == 0:
            self._resume(self.trainer.args, self.trainer.state)
        return self

    def remove(self) -> None:
        """Leave the trainer as it was found; the memory is kept, and ``install`` goes on with it.

        What else has wrapped the same methods since ``install`` must be removed before.
        """
        if not self._is_installed:
            return
        for name, found in self._found.items():
            if found is None:
                self.trainer.__dict__.pop(name, None)
            else:
                setattr(self.trainer, name, found)
        self._found, self._rollouts, self._is_installed = {}, [], False
        self.trainer.remove_callback(self)

    # What the trainer calls -------------------------------------------------------------------------------------

    def _on_generate_single_turn(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self.mu == 0.0 or not self._is_installed or not self.trainer.model.training:
            return original(*args, **kwargs)
        policy = self.trainer.accelerator.unwrap_model(self.trainer.model_wrapped)  # as TRL itself finds it
        with one_more_processor(policy, self._processor):
            return original(*args, **kwargs)

    def _processor(self, attention_mask: Tensor | None) -> LogitsProcessor:
        return Guarded(MemoryLogits(self.memory, self.mu, attention_mask), self._fail)

    def _on_prepare_inputs(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = original(*args, **kwargs)
        if self.mu > 0.0 and self._is_installed and self.trainer.model.training:
            try:
                self._rollouts.append(_rollouts(inputs))
            except (KeyError, TypeError, RuntimeError) as error:
                self._fail(error)
        return inputs

    # Events of transformers -------------------------------------------------------------------------------------

    def on_train_begin(self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A run that resumes takes up the memory that its checkpoint holds."""
        self._resume(args, state)

    def on_step_end(self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The step's rollouts are learned; among several ranks all take part, whatever their mu."""
        rollouts, self._rollouts = self._rollouts, []
        if self._is_off or (not rollouts and self.trainer.accelerator.num_processes == 1):
            return
        try:
            self.memory_loss = self.memory.learn(rollouts, self.failure is not None)
        except RuntimeError as error:
            self._is_off = True  # on every rank: all of them raise
            self._fail(error)

    def on_save(self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The memory goes into the checkpoint."""
        if not state.is_world_process_zero:
            return
        try:
            torch.save(self.state_dict(), self._file(args, state))
        except (OSError, RuntimeError) as error:
            log.warning("DLC: the checkpoint is without the memory: %s (training goes on)", error)

    def _resume(self, args: Arguments, state: TrainerState) -> None:
        if state.global_step == 0:
            return
        try:
            kept = shared_by_first_rank(_read(self._file(args, state)) if state.is_world_process_zero else None)
            if kept is not None:
                self.load_state_dict(kept)
        except (RuntimeError, KeyError, ValueError, TypeError) as error:  # the memory of another shape or version
            self._fail(error)

    @staticmethod
    def _file(args: Arguments, state: TrainerState) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / _FILE

    # Keeping ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The memory's; ``mu`` belongs to whoever set it."""
        return self.memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the memory that ``state`` was taken of."""
        self.memory.load_state_dict(state)

    def _fail(self, error: Exception) -> None:
        if self.failure is not None:
            return
        self.failure = f"{type(error).__name__}: {error}"
        log.error("DLC switched itself off: %s (training goes on, sampling from the policy)", self.failure)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        kept: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  a torn file raises whatever the unpickler stumbles over
        log.warning("DLC: the memory begins without what was sampled before: %s", error)
        return None
    log.info("DLC: the memory goes on from %s", path)
    return kept


def _rollouts(inputs: dict[str, Any]) -> Rollouts:
    """What a micro-batch of TRL trains on."""
    sampled = inputs["completion_mask"]
    attended = torch.cat([inputs["prompt_mask"], sampled], 1)
    if inputs.get("tool_mask") is not None:
        sampled = sampled * inputs["tool_mask"]
    return Rollouts(
        input_ids=torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
        attention_mask=attended,
        completion_mask=torch.cat([torch.zeros_like(inputs["prompt_mask"]), sampled], 1),
    )
