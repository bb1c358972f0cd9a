"""How sure a causal language model was of each token of its responses: entropy and self-certainty, without gradients.

The backbone runs on a few responses at a time; of the logits only a tile exists at once (``probe/token_stats.py``).
"""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from entrostat.probe.token_stats import from_hidden
from entrostat.trainer_adapters.causal_lm import logit_transform


@dataclass(frozen=True, slots=True)
class Confidence:
    """Of B responses; float32, or float64 of a float64 model; 0 where ``mask`` is.

    Args:
        entropy: [B, T] nats.
        self_certainty: [B, T] KL(uniform || p), nats.
        mask: [B, T] bool, the tokens that the policy wrote itself.
    """

    entropy: Tensor
    self_certainty: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal language model of transformers, asked as a trainer asks it.

    Args:
        causal_lm: with ``base_model`` and ``get_output_embeddings``; under PEFT the model inside, adapters on.
        temperature: of the sampling.
        head_dtype: in which the product with the head is taken; None: the head's own.
        autocast: what the backbone's forward runs in.
    """

    causal_lm: Any
    temperature: float = 1.0
    head_dtype: torch.dtype | None = None
    autocast: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext

    @torch.no_grad()
    def confidence(
        self,
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
        is_own: Sequence[Sequence[int]] | None = None,
        *,
        batch_size: int = 8,
    ) -> Confidence:
        """Measure every token of the completions, given its prompt and what precedes it. Draws no random numbers.

        Args:
            prompt_ids: token ids of each response's prompt, at least one.
            completion_ids: token ids of each response.
            is_own: a completion's tokens that the policy wrote (1), not a tool or an environment (0); None: all.
            batch_size: responses in one forward.

        Raises:
            ValueError: the head's weights are not whole on this rank (FSDP, ZeRO-3), or a prompt without tokens.
        """
        if not all(len(ids) for ids in prompt_ids):
            raise ValueError("prompt_ids has a prompt without tokens: nothing predicts its response's first one")
        own = is_own or [[1] * len(ids) for ids in completion_ids]
        device = self._head().weight.device
        mask = _padded(own, device).bool()
        entropy = torch.zeros(mask.shape, dtype=self._result_dtype(), device=device)
        certainty = torch.zeros_like(entropy)
        in_training = [module for module in self.causal_lm.modules() if module.training]
        self.causal_lm.eval()
        try:
            for first in range(0, len(prompt_ids), batch_size):
                some = slice(first, first + batch_size)
                entropy[some], certainty[some] = self._measure(prompt_ids[some], completion_ids[some], mask[some])
        finally:
            for module in in_training:
                module.training = True
        return Confidence(entropy, certainty, mask)

    def _measure(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Entropy and self-certainty [b, T] of a few responses, 0 off the mask [b, T]."""
        # Padded on the right, so no attention mask: what a causal model says of a token does not depend on what comes
        # after it, and positions are those of the sampling, for absolute ones too.
        ids = _padded([[*p, *c] for p, c in zip(prompt_ids, completion_ids, strict=True)], mask.device)
        with self.autocast():
            output = self.causal_lm.base_model(input_ids=ids, use_cache=False)
        rows, places = mask.nonzero(as_tuple=True)
        starts = torch.tensor([len(p) for p in prompt_ids], device=mask.device)
        at = starts[rows] + places
        head, dtype = self._head(), self.head_dtype
        softcap, logit_scale = logit_transform(self.causal_lm.config)
        stats = from_hidden(
            output.last_hidden_state[rows, at - 1].to(dtype or head.weight.dtype),
            head.weight.to(dtype or head.weight.dtype),
            ids[rows, at],
            bias=head.bias,
            temperature=self.temperature,
            softcap=softcap,
            logit_scale=logit_scale,
            n=1,
        )
        entropy = torch.zeros(mask.shape, dtype=stats.entropy.dtype, device=mask.device)
        certainty = torch.zeros_like(entropy)
        entropy[rows, places], certainty[rows, places] = stats.entropy, stats.self_certainty
        return entropy, certainty

    def _head(self) -> Any:
        head = self.causal_lm.get_output_embeddings()
        if type(head.weight.data) is not torch.Tensor or head.weight.numel() == 0:
            raise ValueError(
                "the head's weights are spread over ranks (FSDP or ZeRO-3), and a reward from the policy needs them "
                "whole: train with DDP or ZeRO-2"
            )
        return head

    def _result_dtype(self) -> torch.dtype:
        weight_dtype = self.head_dtype or self._head().weight.dtype
        return torch.float64 if weight_dtype == torch.float64 else torch.float32


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """[B, longest] int64, 0 on the right."""
    width = max((len(row) for row in rows), default=0)
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device).long().view(-1, width)
