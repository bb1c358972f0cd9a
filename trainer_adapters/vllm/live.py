"""A processor into an engine that is there already: TRL's colocate mode makes its ``LLM`` itself and takes no list.

Only between generations: a request that is in the batch already is not known to a processor that comes later.
"""

import importlib
from typing import Any

from entrostat.trainer_adapters.vllm.processor import Processor
from entrostat.wire.errors import AttachError

_V2_INTERFACE = "vllm.v1.worker.gpu.sample.logits_processor"
_WAY_OUT = (
    "give it when the engine is made, LLM(logits_processors=[...]); known are vLLM 0.31 and 0.32 with the engine in "
    "this process (VLLM_ENABLE_V1_MULTIPROCESSING=0, or TRL's colocate mode)"
)


def install(llm: Any, processor: type[Processor]) -> Processor:
    """Make a processor in the engine's runner; it acts from the next request on.

    Args:
        llm: vLLM's ``LLM``; in TRL ``trainer.vllm_generation.llm``.
        processor: ``RolloutProbe(...).processor`` or ``DlcRollouts(...).processor``.

    Raises:
        AttachError: the engine is in another process, is busy, or its private names have moved.
    """
    runner = runner_of(llm)
    if llm.llm_engine.has_unfinished_requests():
        raise AttachError("the engine is generating: install a processor between two generations")
    if (listed := _v2_list(runner)) is not None:
        states = importlib.import_module(_V2_INTERFACE).LogitsProcRequestState
        made = processor(runner.vllm_config, states.from_request_state(runner.sampler.req_states))
        listed.append(made)
        return made
    batch = runner.input_batch
    made = processor(runner.vllm_config, runner.device, False)
    batch.logitsprocs.non_argmax_invariant.append(made)
    batch.logitsprocs_need_output_token_ids = True  # else asynchronous scheduling leaves the newest token unknown
    return made


def remove(llm: Any, made: Processor) -> None:
    """Take out what ``install`` gave; nothing where it is not there."""
    runner = runner_of(llm)
    listed = _v2_list(runner)
    for processors in [listed] if listed is not None else [runner.input_batch.logitsprocs.non_argmax_invariant]:
        if made in processors:
            processors.remove(made)


def runner_of(llm: Any) -> Any:
    """The model runner of an engine in this process.

    Raises:
        AttachError: it cannot be reached, or is none that is known.
    """
    found: Any = llm
    for name in ("llm_engine", "model_executor", "driver_worker", "worker", "model_runner"):
        following = getattr(found, name, None)
        if following is None and name != "worker":  # the worker's wrapper passes attributes on in some versions
            raise AttachError(f"{type(found).__name__} has no {name}: {_WAY_OUT}")
        found = found if following is None else following
    if _v2_list(found) is None and not hasattr(getattr(found, "input_batch", None), "logitsprocs"):
        raise AttachError(f"{type(found).__name__} keeps its logits processors elsewhere: {_WAY_OUT}")
    return found


def _v2_list(runner: Any) -> Any:
    found = getattr(getattr(runner, "sampler", None), "logits_processors", None)
    return found if isinstance(found, list) else None
