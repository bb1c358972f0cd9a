"""More than the sampled token's log-prob out of TRL's vLLM rollouts, without touching TRL's importance ratio.

TRL asks vLLM for the sampled token alone (``logprobs=0``) and takes the first log-prob of each position for the
importance ratio (``GRPOTrainer._generate_single_turn``, TRL 1.15 and 1.16). With ``logprobs=N`` the positions come
sorted by log-prob, the first is the *argmax's*, and the ratio is wrong without a word. So whoever wants the candidates
must hand TRL back the sampled one alone, found by its id. That is what this does.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from entrostat.trainer_adapters.hooks import TRL, check
from entrostat.trainer_adapters.vllm.processor import STEP
from entrostat.wire.errors import AttachError

_MARK = "_entrostat_sampled_first"


@dataclass(frozen=True, slots=True)
class Listed:
    """The last generation, as TRL's ``VLLMGeneration.generate`` gave it: lists of responses, positions, candidates.

    ``logps`` and ``ids`` [R][T][n + 1 at most]: sorted by log-prob; None for a log-prob that vLLM did not have.
    """

    completion_ids: list[list[int]]
    logps: list[list[list[float | None]]]
    ids: list[list[list[int]]]


class RolloutLogprobs:
    """Handle of ``rollout_logprobs``: ``last`` is the newest generation, ``remove()`` puts TRL back as it was."""

    def __init__(self, generation: Any, n: int, seen: Callable[[Listed], None] | None) -> None:
        self.last: Listed | None = None
        self._generation, self._seen = generation, seen
        self._original = generation.generate
        self._had_one = "generate" in vars(generation)
        self._logprobs = generation.logprobs
        generation.logprobs = n
        wrapper = functools.partial(self._generate)
        setattr(wrapper, _MARK, True)
        generation.generate = functools.update_wrapper(wrapper, self._original)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        prompt_ids, completion_ids, logps, ids = self._original(*args, **kwargs)
        if logps is None or ids is None:
            return prompt_ids, completion_ids, logps, ids
        listed = Listed(completion_ids, logps, ids)
        only = [_sampled(*row) for row in zip(completion_ids, logps, ids, strict=True)]
        self.last = listed
        if self._seen is not None:
            self._seen(listed)
        return prompt_ids, completion_ids, only, [[[token] for token in row] for row in completion_ids]

    def remove(self) -> None:
        """TRL as it was found; wraps made on top of this one must be removed before."""
        self._generation.logprobs = self._logprobs
        if self._had_one:
            self._generation.generate = self._original
        else:
            del self._generation.generate


def rollout_logprobs(trainer: Any, n: int, seen: Callable[[Listed], None] | None = None) -> RolloutLogprobs:
    """Ask vLLM for the ``n`` most likely candidates of each token; TRL goes on with the sampled token's log-prob.

    Args:
        trainer: TRL's, with ``use_vllm=True``, in either mode.
        n: candidates; vLLM refuses more than its ``max_logprobs`` (20 in colocate mode).
        seen: called with each generation, before TRL gets it.

    Raises:
        AttachError: the trainer does not generate with vLLM, or TRL's ``generate`` has moved.
        ValueError: n below 1.
    """
    if n < 1:
        raise ValueError(f"n={n}: ask for one candidate or more; without any there is nothing to do")
    generation = _generation_of(trainer)
    return RolloutLogprobs(generation, n, seen)


class StepNames:
    """Handle of ``name_steps``; ``remove()`` puts TRL back as it was, wraps on top of this one removed before."""

    def __init__(self, trainer: Any, generation: Any) -> None:
        self._trainer, self._generation = trainer, generation
        self._original = generation.generate
        self._had_one = "generate" in vars(generation)
        wrapper = functools.partial(self._generate)
        if hasattr(self._original, _MARK):
            setattr(wrapper, _MARK, True)
        generation.generate = functools.update_wrapper(wrapper, self._original)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        generation = self._generation
        given = generation.generation_kwargs
        # The completion API calls a request's own arguments otherwise than SamplingParams does.
        name = "vllm_xargs" if generation.mode == "server" else "extra_args"
        step = {STEP: int(self._trainer.state.global_step) + 1}
        generation.generation_kwargs = {**(given or {}), name: {**((given or {}).get(name) or {}), **step}}
        try:
            return self._original(*args, **kwargs)
        finally:
            generation.generation_kwargs = given

    def remove(self) -> None:
        """TRL as it was found."""
        if self._had_one:
            self._generation.generate = self._original
        else:
            del self._generation.generate


def name_steps(trainer: Any) -> StepNames:
    """Have each of TRL's requests to vLLM name the step that will first train on it, for ``RolloutStream``.

    Raises:
        AttachError: the trainer does not generate with vLLM, or TRL's ``generate`` has moved.
    """
    generation = _generation_of(trainer)
    if not hasattr(generation, "generation_kwargs") or getattr(generation, "mode", None) not in ("server", "colocate"):
        raise AttachError("VLLMGeneration has no generation_kwargs or another mode; known are TRL 1.15 and 1.16")
    return StepNames(trainer, generation)


def _generation_of(trainer: Any) -> Any:
    generation = getattr(trainer, "vllm_generation", None)
    if generation is None:
        raise AttachError(f"{type(trainer).__name__} does not generate with vLLM: set use_vllm=True, or leave this out")
    check(TRL, ["rollout_logprobs"], generation)
    if not hasattr(generation, "logprobs"):
        raise AttachError(
            f"VLLMGeneration of TRL {TRL.installed()} has no logprobs; known are TRL {TRL.known}. Without this the "
            "rollout probe still measures the candidates, in the engine"
        )
    return generation


def check_logprobs(trainer: Any) -> None:
    """Raise where a trainer's vLLM is asked for several log-probs and nobody puts the sampled one first.

    Raises:
        AttachError: with the reason and the way out.
    """
    generation = getattr(trainer, "vllm_generation", None)
    asked = getattr(generation, "logprobs", None)
    given = (getattr(generation, "generation_kwargs", None) or {}).get("logprobs", asked)
    is_ours = hasattr(getattr(generation, "generate", None), _MARK)
    if not is_ours and isinstance(given, int) and given > 0:
        raise AttachError(
            f"vLLM is asked for logprobs={given}, and TRL would take the most likely token's log-prob for the sampled "
            "one's: leave logprobs alone and call entrostat.trainer_adapters.vllm.trl_rollouts.rollout_logprobs"
        )


def _sampled(tokens: list[int], logps: list[list[float | None]], ids: list[list[int]]) -> list[list[float | None]]:
    """Of each position the sampled token's log-prob, alone; None where vLLM did not give it."""
    found: list[list[float | None]] = []
    for token, values, candidates in zip(tokens, logps, ids, strict=True):
        value = next((v for v, c in zip(values, candidates, strict=True) if c == token), None)
        found.append([None if value is None or math.isnan(value) else value])
    return found
