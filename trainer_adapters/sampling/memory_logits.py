"""The processor that makes the policy sample from softmax(f_theta - mu * f_phi) (Over-sharpening Sec. 3.2).

**Decision** on temperature T, of which the paper says nothing: f~ = f_theta - mu * f_phi are *the* logits, and rollouts
are drawn from softmax(f~ / T). transformers puts a processor that ``generate`` is given just there: behind penalties
and suppressed tokens, before temperature, top-k and top-p, which therefore act on the calibrated distribution.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from entrostat.trainer_adapters.sampling.memory_lm import MemoryLM


class MemoryLogits(LogitsProcessor):  # type: ignore[misc]  # transformers is not typed for us
    """Subtracts ``mu`` times the memory's next-token logits; one for each call of ``generate``.

    The memory keeps keys and values between decode steps. It begins again where the rows or the length say that this is
    not the continuation of what it has seen; rows that are *reordered* look like a continuation, so neither beam search
    nor assisted generation may use it.

    Args:
        memory: f_phi.
        mu: its weight.
        attention_mask: [B, P] of the prompts, 0 on (left) padding; ``generate`` does not hand it to a processor. None
            where no prompt is padded.
    """

    def __init__(self, memory: MemoryLM, mu: float, attention_mask: Tensor | None) -> None:
        self.memory, self.mu = memory, mu
        self._prompt_mask = attention_mask
        self._mask: Tensor | None = None
        self._cache: Any = None
        self._num_seen = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """[B, V] scores of the next token behind ``input_ids`` [B, L], calibrated.

        Raises:
            ValueError: rows or length that the prompts' mask cannot belong to, or another vocabulary.
        """
        logits = self._next_logits(input_ids)
        if logits.shape != scores.shape:
            raise ValueError(
                f"the memory gives {logits.shape[-1]} logits and the policy {scores.shape[-1]}: "
                "they must have the same vocabulary"
            )
        # -inf (a suppressed token) stays -inf: the memory's logits are finite.
        return scores - self.mu * logits.to(scores)

    @torch.no_grad()
    def _next_logits(self, input_ids: Tensor) -> Tensor:
        num_rows, length = input_ids.shape
        mask = self._mask
        if mask is None or num_rows != mask.shape[0] or length <= self._num_seen:
            mask = self._begin(input_ids)
        self._mask = torch.cat([mask, mask.new_ones(num_rows, length - mask.shape[1])], 1)
        output = self.memory.forward(input_ids[:, self._num_seen :], self._mask, keep=1, cache=self._cache)
        self._cache, self._num_seen = output.past_key_values, length
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _begin(self, input_ids: Tensor) -> Tensor:
        """Forget; the mask of the prompts of these rows."""
        self._cache, self._num_seen = None, 0
        if self._prompt_mask is None:
            return torch.ones_like(input_ids)
        (num_rows, length), (num_prompts, width) = input_ids.shape, self._prompt_mask.shape
        if num_rows % num_prompts or length < width:
            raise ValueError(
                f"the processor was made for {num_prompts} prompts of width {width} and is asked for {num_rows} rows "
                f"of length {length}: make one for each call of generate"
            )
        # ``num_return_sequences`` repeats each prompt's row.
        return self._prompt_mask.repeat_interleave(num_rows // num_prompts, dim=0)
