"""What a rollout probe keeps of each sampling step, on the device until somebody asks."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from entrostat.probe.token_stats import TokenStats, from_logits
from entrostat.trainer_adapters.vllm.processor import Batch, Request

DEFAULT_CAPACITY = 1 << 20
"""Tokens kept at most; about 100 bytes each with three candidates."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sampling step: k rows of k requests.

    ``entropy``, ``logsumexp`` [k]; ``top_ids``, ``top_logps`` [k, n]; ``fed`` [k] or None (see ``Batch``).
    """

    requests: Sequence[Request]
    positions: Sequence[int]
    entropy: Tensor
    logsumexp: Tensor
    top_ids: Tensor
    top_logps: Tensor
    fed: Tensor | None


def measure(logits: Tensor, batch: Batch, n: int) -> Chunk:
    """The distribution that each row is sampled from: softmax(logits / T), T the request's temperature, 1 where greedy.

    Before top-k, top-p and min-p: a truncated distribution has another entropy, and no trainer's compares to it.
    """
    stats = _stats(logits if len(batch.rows) == logits.shape[0] else logits[batch.rows], batch, n)
    fed = batch.fed
    return Chunk(
        batch.requests, batch.positions, stats.entropy, stats.logsumexp, stats.top_ids, stats.top_logps, fed
    )  # fmt: skip


def _stats(logits: Tensor, batch: Batch, n: int) -> TokenStats:
    heat = torch.tensor([r.temperature for r in batch.requests], device=logits.device)
    nobody = torch.zeros(len(batch.rows), dtype=torch.int64, device=logits.device)  # what is drawn is not known yet
    return from_logits(logits.float(), nobody, temperature=heat, n=n)


class Kept:
    """Chunks in the order they came, until they are taken. What finds it full is counted in ``num_dropped``.

    Args:
        capacity: tokens.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity, self.num_dropped = capacity, 0
        self._chunks: list[Chunk] = []
        self._num = 0
        self._lock = threading.Lock()
        self._ready: torch.cuda.Event | None = None

    def add(self, chunk: Chunk) -> None:
        """Keep it; nothing is copied and nobody waits."""
        with self._lock:
            if self._num + len(chunk.requests) > self.capacity:
                self.num_dropped += len(chunk.requests)
                return
            self._chunks.append(chunk)
            self._num += len(chunk.requests)
            if chunk.entropy.is_cuda:
                self._ready = self._ready or torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._ready.record()

    def take(self) -> Chunk | None:
        """Everything kept so far as one chunk on the host, and nothing is kept any more; None where there is nothing.

        Waits for the device; may be called from any thread.
        """
        with self._lock:
            chunks, self._chunks, self._num = self._chunks, [], 0
            ready, self._ready = self._ready, None
        if not chunks:
            return None
        if ready is not None:
            ready.synchronize()

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(c, name) for c in chunks]).cpu()

        return Chunk(
            requests=[r for c in chunks for r in c.requests],
            positions=[t for c in chunks for t in c.positions],
            entropy=joined("entropy"),
            logsumexp=joined("logsumexp"),
            top_ids=joined("top_ids"),
            top_logps=joined("top_logps"),
            fed=None if chunks[0].fed is None else joined("fed"),
        )
