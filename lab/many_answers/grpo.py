"""The reinforcement: TRL's GRPO trainer on the task, with the settings of the demo."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entrostat.lab.many_answers import task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from trl import GRPOTrainer

MAX_COMPLETION = 8
"""Tokens: two numbers of two digits, the sign, the end, and room to be wrong."""


def make_trainer(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
    *,
    steps: int,
    output_dir: str | Path,
    seed: int = 0,
    on_step: Callable[[int], None] | None = None,
    callbacks: Sequence[Any] = (),
    **overrides: Any,
) -> "GRPOTrainer":
    """A trainer of 128 completions a step, 8 to a prompt, one update per rollout, quiet on the console.

    Args:
        model: a model that was taught the task; trained in place.
        tokenizer: the task's.
        steps: optimizer steps.
        output_dir: TRL's scratch folder.
        seed: of the order of prompts and of sampling.
        on_step: called with the number of each step that has ended.
        callbacks: further transformers callbacks.
        **overrides: settings of ``GRPOConfig``.
    """
    import datasets
    import transformers
    import trl
    from transformers.trainer_callback import PrinterCallback

    transformers.logging.set_verbosity_error()
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "max_steps": steps,
        "per_device_train_batch_size": 128,
        "num_generations": 8,
        "max_completion_length": MAX_COMPLETION,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "constant",
        "beta": 0.0,
        "temperature": 1.0,
        "seed": seed,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    order = task.prompts() * 40
    random.Random(seed).shuffle(order)
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=task.reward,
        args=trl.GRPOConfig(**(settings | overrides)),
        train_dataset=datasets.Dataset.from_dict({"prompt": order}),
        processing_class=tokenizer,
        callbacks=[*callbacks, *([_on_step_callback(on_step)] if on_step else [])],
    )
    trainer.remove_callback(PrinterCallback)  # it prints every step's metrics over the progress display
    return trainer


def _on_step_callback(on_step: Callable[[int], None]) -> Any:
    from transformers import TrainerCallback

    class OnStep(TrainerCallback):  # type: ignore[misc]  # transformers is not typed for us
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            on_step(state.global_step)

    return OnStep()
