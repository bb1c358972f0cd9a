"""Rewards from the policy's own confidence (RLIF), as reward functions of TRL: no verifier, no label.

    trainer = GRPOTrainer(model, reward_funcs=[self_certainty()], ...)
    entrostat.attach(trainer)    # or, without a probe, bind_rewards(trainer)

TRL hands a reward function texts and completion ids, but neither the prompt's ids nor the model: binding finds both.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from entrostat.interventions import rewards
from entrostat.trainer_adapters.hooks import REWARDS, TRL, check
from entrostat.trainer_adapters.policy_confidence import Confidence, Policy

if TYPE_CHECKING:
    from trl import GRPOTrainer

_ATTRIBUTE = "_entrostat_generation"
Score = Callable[[Confidence, int | None], Tensor]


@dataclass(slots=True)
class Generation:
    """The trainer's latest generation on this rank; several rewards of one generation share one measurement."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    is_own: list[list[int]] | None
    confidence: Confidence | None = None


class PolicyReward:
    """A reward function of TRL: one number a response, nats, None for a response in which the policy wrote nothing.

    It is asked of the policy as it is when the response has been sampled, at the trainer's temperature, without
    gradients and without dropout; it costs a forward a response, shared by all of these rewards of a trainer.

    Args:
        name: under which TRL logs it.
        score: confidence, longest response allowed -> [B].
        max_length: for ``trajectory_entropy``; None: the trainer's ``max_completion_length``.
    """

    def __init__(self, name: str, score: Score, max_length: int | None = None) -> None:
        self.__name__ = name
        self._score, self._max_length = score, max_length
        self._trainer: Any = None

    @property
    def is_bound(self) -> bool:
        """Whether it knows its trainer."""
        return self._trainer is not None

    def bind(self, trainer: "GRPOTrainer") -> "PolicyReward":
        """Ask this trainer's policy from now on; before ``train``. The trainer's numbers stay what they were.

        Raises:
            AttachError: not a trainer whose generations can be read.
        """
        _listen(trainer)
        self._trainer = trainer
        return self

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        **_: Any,
    ) -> list[float | None]:
        """As TRL calls it; ``completion_ids`` must be those of the trainer's latest generation.

        Raises:
            ValueError: not bound, not that generation, or prompts with images.
        """
        if self._trainer is None:
            raise ValueError(
                f"{self.__name__} has no policy: call entrostat.attach(trainer), or "
                "entrostat.trainer_adapters.reward_functions.bind_rewards(trainer)"
            )
        if any(_has_images(messages) for messages in (*prompts, *completions)):
            raise ValueError(f"{self.__name__} reads text only, and this batch has images")
        generation: Generation | None = getattr(self._trainer, _ATTRIBUTE).latest
        if generation is None or list(completion_ids) != generation.completion_ids:
            raise ValueError(f"{self.__name__}: completion_ids are not those of the trainer's latest generation")
        if generation.confidence is None:
            generation.confidence = policy_of(self._trainer).confidence(
                generation.prompt_ids,
                generation.completion_ids,
                generation.is_own,
                batch_size=self._trainer.args.per_device_train_batch_size,
            )
        seen = generation.confidence
        max_length = self._max_length or self._trainer.max_completion_length
        scores, num_own = self._score(seen, max_length).tolist(), seen.mask.sum(1).tolist()
        return [score if own else None for score, own in zip(scores, num_own, strict=True)]


def self_certainty() -> PolicyReward:
    """Mean KL(uniform || p) over a response's tokens (Zhao et al. 2025, arXiv:2505.19590).

    Example:
        >>> self_certainty().__name__
        'self_certainty'
    """
    return PolicyReward("self_certainty", lambda seen, _: rewards.self_certainty(seen.self_certainty, seen.mask))


def token_entropy() -> PolicyReward:
    """Minus the mean entropy over a response's tokens (Prabhudesai et al. 2025, arXiv:2505.22660)."""
    return PolicyReward("token_entropy", lambda seen, _: rewards.token_entropy(seen.entropy, seen.mask))


def trajectory_entropy(max_length: int | None = None) -> PolicyReward:
    """Minus the sum of a response's token entropies over ``max_length`` (Agarwal et al. 2025, arXiv:2505.15134).

    Args:
        max_length: tokens a response may have; None: the trainer's ``max_completion_length``.
    """
    return PolicyReward("trajectory_entropy", _trajectory_entropy, max_length)


def bind_rewards(trainer: "GRPOTrainer") -> None:
    """Bind those of the trainer's reward functions that are ``PolicyReward``; one that is bound stays so.

    Raises:
        AttachError: as ``PolicyReward.bind``.
    """
    for function in trainer.reward_funcs:
        if isinstance(function, PolicyReward) and not function.is_bound:
            function.bind(trainer)


def policy_of(trainer: "GRPOTrainer") -> Policy:
    """The trainer's policy as its own loss asks it: temperature, autocast, precision of the head."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    causal_lm = model.get_base_model() if hasattr(model, "peft_config") else model
    mixed = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(trainer.accelerator.mixed_precision)
    is_fp32 = getattr(trainer.args, "cast_lm_head_to_fp32", False)
    return Policy(causal_lm, trainer.temperature, torch.float32 if is_fp32 else mixed, trainer.accelerator.autocast)


def _trajectory_entropy(seen: Confidence, max_length: int | None) -> Tensor:
    if max_length is None:
        raise ValueError("trajectory_entropy: the trainer sets no max_completion_length, so give max_length")
    return rewards.trajectory_entropy(seen.entropy, seen.mask, max_length)


def _has_images(messages: Any) -> bool:
    """Whether a conversation has parts that are not text; a plain text has none."""
    contents = [] if isinstance(messages, str) else [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(part.get("type", "text") != "text" for part in parts)


class _Ear:
    """Hears what a trainer generates."""

    def __init__(self) -> None:
        self.latest: Generation | None = None


def _listen(trainer: Any) -> None:
    """Keep each generation's prompt ids as sampled from, and what a tool wrote; TRL hands rewards neither."""
    if hasattr(trainer, _ATTRIBUTE):
        return
    check(TRL, [REWARDS], trainer)
    generate = trainer._generate
    ear = _Ear()

    @functools.wraps(generate)
    def listening(prompts: list[Any]) -> Any:
        result = generate(prompts)
        # GRPO: prompt ids, completion ids, tool mask, completions, ...; RLOO knows no tools: the same without the mask.
        is_own = result[2] if len(result) > 3 else None
        ear.latest = Generation(result[0], result[1], is_own)
        return result

    trainer._generate = listening
    setattr(trainer, _ATTRIBUTE, ear)
