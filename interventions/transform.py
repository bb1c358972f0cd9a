"""What an intervention is: a pure function on the tokens of a batch, in one phase of the policy loss."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict
from torch import Tensor

ReferenceKL = Callable[[Tensor], Tensor]


class Phase(StrEnum):
    """Where an intervention acts: first those outside the loss, then the loss's phases in their order."""

    trainer = "trainer"
    sampling = "sampling"
    reward = "reward"
    advantage = "advantage"
    ratio = "ratio"
    clipping = "clipping"
    token_mask = "token mask"
    penalty = "penalty"


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What a response's whole group says, where the batch at hand holds only a part of it.

    Args:
        num_others: [B] responses of its prompt whose advantage is not above 0; None: count those in the batch.
        ln_ppl_z: [B] z-score of its ln PPL within its group, at sampling; None: taken over those in the batch.
    """

    num_others: Tensor | None = None
    ln_ppl_z: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a transform may read and replace: B responses, T positions.

    Args:
        logp: [B, T] log-prob of the sampled token under the policy being trained, with gradient; nats.
        log_ratio: [B, T] logp minus that of the policy that sampled, with gradient.
        advantage: [B, T].
        mask: [B, T] 1 on response tokens; not to be replaced.
        original_advantage: [B, T] before any method: what statistics of groups and signs are taken from.
        weight: [B, T] multiplies each token's surrogate; 1 at first.
        eps_low: lower clip range of the ratio.
        eps_high: upper clip range.
        penalty: [B, T] added to each token's loss, with gradient; 0 at first.
        extra: scalar added to the aggregated loss, with gradient; 0 at first.
        counts: numbers worth telling, by name; scalars.
        entropy: [B, T] nats, with gradient where the trainer gives one; None where unknown.
        top_logps: [B, T, n] of the policy's most likely candidates, with gradient; None where unknown.
        is_top1: [B, T] bool; None where unknown.
        reference_kl: rows [k] of the flattened batch -> their KL to the reference over the whole vocabulary [k], with
            gradient; None where there is no reference.
        rewards: [B]; None where unknown.
        groups: [B] the same number for responses to the same prompt; None where unknown.
        facts: of the whole groups, for trainers that split them over batches.
    """

    logp: Tensor
    log_ratio: Tensor
    advantage: Tensor
    mask: Tensor
    original_advantage: Tensor
    weight: Tensor
    eps_low: float
    eps_high: float
    penalty: Tensor
    extra: Tensor
    counts: Mapping[str, Tensor] = field(default_factory=dict)
    entropy: Tensor | None = None
    top_logps: Tensor | None = None
    is_top1: Tensor | None = None
    reference_kl: ReferenceKL | None = None
    rewards: Tensor | None = None
    groups: Tensor | None = None
    facts: GroupFacts = field(default_factory=GroupFacts)

    def counting(self, **counts: Tensor) -> "Tokens":
        """A copy that tells these numbers too."""
        return replace(self, counts={**self.counts, **counts})

    def with_(self, **changes: Any) -> "Tokens":
        """A copy with some fields replaced."""
        return replace(self, **changes)


class Params(BaseModel):
    """Base of every method's parameters: bounded numbers, unknown names refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


State = Any
"""A transform's memory between steps; None where it has none. Never kept inside the transform itself."""


@dataclass(frozen=True, slots=True)
class Transform:
    """A method with its parameters fixed.

    Args:
        name: of the method.
        phase: where it acts.
        apply: (tokens, state) -> (tokens, state); changes nothing it was given.
        needs: fields of ``Tokens`` that must not be None.
    """

    name: str
    phase: Phase
    apply: Callable[[Tokens, State], tuple[Tokens, State]]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Method:
    """An intervention: how to make its transform, and what people are told of it.

    Args:
        name: as in rules, SQL and docs.
        phase: where it acts.
        params: its parameters, with bounds and the paper's defaults.
        make: parameters -> transform; None where it acts outside the loss (``Phase.trainer``, ``Phase.sampling``).
        source: paper and equation.
        excludes: methods that it cannot be combined with, and why.
    """

    name: str
    phase: Phase
    params: type[Params]
    make: Callable[[Any], Transform] | None
    source: str
    excludes: dict[str, str]

    @property
    def meaning(self) -> str:
        """One sentence: the first line of the method's module."""
        return (sys.modules[self.params.__module__].__doc__ or "").partition("\n")[0]
