"""How TRL generates with transformers: whether a processor can be put into it, and how."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from entrostat.trainer_adapters.hooks import TRL, check
from entrostat.wire.errors import AttachError


class Guarded(LogitsProcessor):  # type: ignore[misc]  # transformers is not typed for us
    """The processor, until it fails: then the policy's own scores, and whoever asked is told once."""

    def __init__(self, processor: LogitsProcessor, failed: Callable[[Exception], None]) -> None:
        self._processor: LogitsProcessor | None = processor
        self._failed = failed

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The processor's scores, or those given where it failed."""
        if self._processor is not None:
            try:
                calibrated: Tensor = self._processor(input_ids, scores)
                return calibrated
            except Exception as error:  # noqa: BLE001  our failure is not the trainer's
                self._processor = None
                self._failed(error)
        return scores


@contextmanager
def one_more_processor(model: Any, make: Callable[[Tensor | None], LogitsProcessor]) -> Iterator[None]:
    """Within, each ``model.generate`` uses the processor that ``make`` gives for its attention mask."""
    generate = model.generate
    had_one = "generate" in model.__dict__

    @functools.wraps(generate)
    def with_processor(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop("logits_processor", None) or []
        processors = LogitsProcessorList([*given, make(kwargs.get("attention_mask"))])
        return generate(*args, logits_processor=processors, **kwargs)

    model.generate = with_processor
    try:
        yield
    finally:
        if had_one:
            model.generate = generate
        else:
            del model.generate


def check_generation(trainer: Any, uses: Iterable[str] = ()) -> None:
    """Raise if this trainer's way of generating has no place for a processor that keeps state.

    Args:
        trainer: of TRL.
        uses: of ``entrostat.trainer_adapters.hooks``, whose private methods will be wrapped.

    Raises:
        AttachError: with the reason and what to change.
    """
    for reason, is_so in (
        (
            "vLLM samples in an engine of its own: set use_vllm=False, or use "
            "entrostat.trainer_adapters.vllm.dlc.DlcRollouts",
            getattr(trainer, "use_vllm", False),
        ),
        (
            "continuous batching takes no logits processor that keeps state: set "
            "use_transformers_continuous_batching=False",
            getattr(trainer, "use_transformers_continuous_batching", False)
            or getattr(trainer, "use_transformers_paged", False),
        ),
        ("a rollout_func generates by itself", getattr(trainer, "rollout_func", None) is not None),
        ("the memory reads token ids and would not see the images", getattr(trainer, "_is_vlm", False)),
    ):
        if is_so:
            raise AttachError(f"no DLC for this trainer: {reason}")
    _check_config(getattr(trainer, "generation_config", None))
    check(TRL, uses, trainer)


def _check_config(config: Any) -> None:
    if (getattr(config, "num_beams", None) or 1) > 1:
        raise AttachError("no DLC with beam search, which reorders the rows that the memory follows: set num_beams=1")
    if getattr(config, "prompt_lookup_num_tokens", None) is not None:
        raise AttachError("no DLC with prompt lookup, which takes tokens back: set prompt_lookup_num_tokens=None")
