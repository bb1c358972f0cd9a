"""The memory of DLC: a causal language model that learns how often each response was sampled.

Over-sharpening Sec. 3.2: after each training step the memory is updated with a standard cross-entropy loss on the
sampled trajectories, so that its logits are high for what is generated often.

**Decisions**, where the paper says nothing: a memory made here is small and from scratch (theirs is Qwen3-1.7B);
its head begins at zero, so a memory that has seen nothing subtracts nothing; AdamW at 1e-3 without weight decay; no
dropout, neither when it learns nor when it is asked.
"""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Sampled responses behind their prompts, padded on either side.

    Args:
        input_ids: [B, L] prompt, then response.
        attention_mask: [B, L] 0 on padding.
        completion_mask: [B, L] 1 on the tokens to learn: the sampled ones.
    """

    input_ids: Tensor
    attention_mask: Tensor
    completion_mask: Tensor


class MemoryLM:
    """A causal language model with an optimizer of its own; nothing of it draws from torch's random numbers.

    Args:
        model: any causal language model of transformers over the policy's vocabulary; it is kept in eval mode.
        learning_rate: of AdamW; for a pretrained model choose a smaller one.
        tokens_per_pass: rows are learned in passes of about so many positions, because logits of a whole rollout over a
            large vocabulary would not fit; the update is the same.
    """

    def __init__(self, model: nn.Module, learning_rate: float = 1e-3, tokens_per_pass: int = 4096) -> None:
        self.model = model.eval()
        self.tokens_per_pass = tokens_per_pass
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
        self.num_updates = 0
        accepted = inspect.signature(model.forward).parameters
        self._accepts = {name for name in ("position_ids", "logits_to_keep") if name in accepted}

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        size: int = self.model.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
        return size

    def to(self, device: torch.device) -> "MemoryLM":
        """Move the weights and the optimizer's moments, in place."""
        self.model.to(device)
        # Loading is what makes an optimizer follow its parameters to their device.
        self.optimizer.load_state_dict(self.optimizer.state_dict())
        return self

    # Asking -----------------------------------------------------------------------------------------------------

    def forward(self, input_ids: Tensor, attention_mask: Tensor, keep: int | None = None, cache: Any = None) -> Any:
        """The model's output for the new tokens ``input_ids`` behind ``cache``.

        Args:
            input_ids: [B, n] the last n columns of the sequence.
            attention_mask: [B, L] of the whole sequence; positions are counted on it, so left padding moves nothing.
            keep: logits of the last ``keep`` positions suffice.
            cache: keys and values of what came before; None at the start.
        """
        settings: dict[str, Any] = {}
        if "position_ids" in self._accepts:
            positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            settings["position_ids"] = positions[:, -input_ids.shape[1] :]
        if keep is not None:
            settings |= {"use_cache": True, "past_key_values": cache}
            if "logits_to_keep" in self._accepts:
                settings["logits_to_keep"] = keep
        else:
            settings["use_cache"] = False
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **settings)

    # Learning ---------------------------------------------------------------------------------------------------

    def learn(self, batches: Sequence[Rollouts], has_failed: bool = False) -> float | None:
        """One update on these responses and, where torch.distributed runs, on those of all other ranks.

        Each token counts the same, whichever batch or rank it is in, so the memories of all ranks stay equal. Every
        rank must call this at the same time.

        Args:
            batches: the responses; none is fine.
            has_failed: something went wrong on this rank before: no rank shall learn, and all shall know.

        Returns:
            Mean cross-entropy in nats a token before the update; None if there was no token.

        Raises:
            RuntimeError: it failed here or on another rank; no rank has updated.
        """
        error: Exception | None = None
        loss, count = 0.0, 0
        self.optimizer.zero_grad()
        try:
            loss, count = self._accumulate(batches)
        except Exception as caught:  # noqa: BLE001  the other ranks are waiting for us; raised below
            error = caught
        loss, total, num_failed = self._over_ranks(loss, count, has_failed or error is not None)
        if num_failed:
            self.optimizer.zero_grad()
            raise RuntimeError(
                f"the memory could not learn on {num_failed} rank(s): {error or 'see the log'}"
            ) from error
        if total == 0:
            return None
        self._average_gradients(total)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_updates += 1
        return loss / total

    def _accumulate(self, batches: Sequence[Rollouts]) -> tuple[float, int]:
        """Sum the gradients of every token's cross-entropy into ``grad``; that sum, and the number of tokens."""
        losses, count = [], 0
        with torch.enable_grad():
            for piece in (p for b in batches for p in _pieces(b, self.tokens_per_pass)):
                output = self.forward(piece.input_ids, piece.attention_mask)
                is_learned = piece.completion_mask[:, 1:].bool()
                # Chosen before the loss: what stands on padding reaches neither loss nor gradient.
                logits = output.logits[:, :-1][is_learned].float()
                loss = nn.functional.cross_entropy(logits, piece.input_ids[:, 1:][is_learned], reduction="sum")
                loss.backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach().double())
                count += logits.shape[0]
        return float(sum(losses)), count

    def _over_ranks(self, loss: float, count: int, has_failed: bool) -> tuple[float, int, int]:
        if not _is_distributed():
            return loss, count, int(has_failed)
        device = next(self.model.parameters()).device
        sums = torch.tensor([loss, count, has_failed], dtype=torch.float64, device=device)
        torch.distributed.all_reduce(sums)
        return float(sums[0]), int(sums[1]), int(sums[2])

    def _average_gradients(self, total: int) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if _is_distributed():
                torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= total

    def copy_from_first_rank(self) -> None:
        """All ranks take rank 0's weights; without torch.distributed nothing happens."""
        if _is_distributed():
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                torch.distributed.broadcast(tensor.data, src=0)

    # Keeping ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Weights, the optimizer's moments and the number of updates."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "num_updates": self.num_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the memory that ``state`` was taken of.

        Raises:
            RuntimeError: it was a memory of another shape.
        """
        self.model.load_state_dict(state["model"])
        # A copy: the optimizer would go on in the very tensors it is given.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.num_updates = state["num_updates"]


def shared_by_first_rank(value: Any) -> Any:
    """Rank 0's ``value`` on every rank; without torch.distributed the value itself."""
    if not _is_distributed():
        return value
    shared = [value]
    torch.distributed.broadcast_object_list(shared, src=0)
    return shared[0]


def _is_distributed() -> bool:
    is_running = torch.distributed.is_available() and torch.distributed.is_initialized()
    return is_running and torch.distributed.get_world_size() > 1


def _pieces(batch: Rollouts, num_tokens: int) -> list[Rollouts]:
    """The batch's rows, so many at a time that they are ``num_tokens`` positions at most, and at least one row."""
    num_rows = max(1, num_tokens // batch.input_ids.shape[1])
    columns = (batch.input_ids, batch.attention_mask, batch.completion_mask)
    starts = range(0, len(batch.input_ids), num_rows)
    return [Rollouts(*(column[i : i + num_rows] for column in columns)) for i in starts]
