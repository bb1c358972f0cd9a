"""What leaves the device for a micro-batch: one asynchronous copy, on the training thread; everything else is later."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from entrostat.probe.columns import Columns, packed
from entrostat.probe.selection import Scores, select
from entrostat.probe.token_stats import TokenStats
from entrostat.wire.handover import Bytes, Span

Keep = Callable[[Sequence[Bytes]], Span | None]
"""Copies bytes to where they outlive the process (``wire/handover.py``); None: it cannot."""
MeasureRows = Callable[[Tensor], TokenStats]
"""Flat token indices [k] -> their statistics, under no_grad."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What an adapter hands over for one micro-batch; B responses, T positions; nothing is kept but copies.

    Args:
        logp: [B, T] log-prob of the sampled token, nats.
        entropy: [B, T] nats.
        mask: [B, T] non-zero on response tokens that are trained on.
        token_ids: [B, T] sampled tokens.
        document: [B, T] int64, changes along a row where another document begins, each of which is then a response of
            its own; what is given per response cannot be given then. None: a row is a response.
        advantages: [B] or [B, T], before any shaping; None where the trainer has none.
        log_ratio: [B, T] per token, or [B] where the trainer's ratio is per response; None where there is none.
        is_top1: [B, T] bool; None where it is known only for the rows looked at.
        sum_p2: [B, T]; None likewise.
        hidden_norm: [B, T] Euclidean norm of the hidden state that predicts the token.
        prompt: [B] int64, the same number for responses to the same prompt.
        reward: [B].
        truncated: [B] bool.
        prompt_ids: [B, P] tokens of the prompts, padded with anything that decodes to no letter or is negative.
        rollout_logp: [B, T] log-prob of each token as the engine that sampled it reported, at the sampling
            temperature, nats; NaN where unknown.
        old_logp: [B, T] log-prob under the trainer's own policy at the rollout, to hold ``rollout_logp`` against, where
            ``log_ratio`` is per response; None: it is ``logp - log_ratio``.
    """

    logp: Tensor
    entropy: Tensor
    mask: Tensor
    token_ids: Tensor
    advantages: Tensor | None = None
    log_ratio: Tensor | None = None
    is_top1: Tensor | None = None
    sum_p2: Tensor | None = None
    hidden_norm: Tensor | None = None
    prompt: Tensor | None = None
    reward: Tensor | None = None
    truncated: Tensor | None = None
    prompt_ids: Tensor | None = None
    rollout_logp: Tensor | None = None
    old_logp: Tensor | None = None
    document: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """A micro-batch on its way to the host, or on the host's disk.

    ``measured`` are the flat indices with candidate statistics (absent: none); ``kept`` those that become token rows
    (absent: all that are valid).

    Args:
        tensors: the copies in memory; empty where they are in ``stored``.
        shape: (B, T).
        measured_all: every row was measured.
        ready: when the copies have arrived; None: they have.
        stored: the copies where they outlive the process.
    """

    tensors: dict[str, Tensor]
    shape: tuple[int, int]
    measured_all: bool
    ready: torch.cuda.Event | None = None
    stored: Columns | None = None

    def host(self) -> dict[str, Tensor]:
        """The copies. Blocks until they have arrived: call it on the background thread. Raises OSError."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.tensors if self.stored is None else self.stored.read()

    def kept_by(self, keep: Keep) -> "Capture":
        """The same, stored, where its copies have arrived and ``keep`` takes them."""
        if self.stored is not None or not self._has_arrived():
            return self
        stored = _stored(self.tensors, keep)
        return self if stored is None else replace(self, tensors={}, ready=None, stored=stored)

    def _has_arrived(self) -> bool:
        return self.ready is None or bool(self.ready.query())  # type: ignore[no-untyped-call]  # torch gives no types

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""
        in_memory = sum(t.numel() * t.element_size() for t in self.tensors.values())
        return in_memory + (self.stored.span.size if self.stored else 0)


def capture(
    seen: Observed,
    *,
    measure: MeasureRows | None,
    measure_all: bool,
    budget: int | None,
    generator: torch.Generator,
    keep: Keep | None = None,
) -> Capture:
    """Choose rows, measure them, start the copy to the host.

    Args:
        seen: the micro-batch.
        measure: gives the candidates of chosen rows; None where neither hidden states nor logits are at hand.
        measure_all: measure every row, whatever the budget keeps.
        budget: token rows to keep; None keeps all.
        generator: for the random part of the choice, of the tensors' device.
        keep: takes the copies of what is on the host already; None: they stay in memory.

    Raises:
        ValueError: rows hold several documents, and something is given one a row.
    """
    if seen.document is not None:
        _check_documents(seen)
    tensors = {name: value for name in _FIELDS if (value := getattr(seen, name)) is not None}
    if measure is not None or budget is not None:
        tensors |= _chosen(seen, measure, measure_all, budget, generator)
    return _to_host(tensors, (int(seen.mask.shape[0]), int(seen.mask.shape[1])), measure_all, keep)


@torch.no_grad()
def _chosen(
    seen: Observed, measure: MeasureRows | None, measure_all: bool, budget: int | None, generator: torch.Generator
) -> dict[str, Tensor]:
    """``kept`` and ``reason`` where not all are kept, ``measured`` and its statistics where there are any."""
    kept = _kept_rows(seen, budget, generator)
    tensors = {} if kept is None else {"kept": kept[0], "reason": kept[1]}
    if measure is not None:
        measured = _all_rows(_valid(seen)) if measure_all or kept is None else kept[0]
        stats = measure(measured)
        tensors |= {"measured": measured} | {f"stats_{name}": getattr(stats, name) for name in _STATS}
    return tensors


def _check_documents(seen: Observed) -> None:
    per_row = {"prompt", "reward", "truncated", "prompt_ids"}
    per_row |= {n for n in ("advantages", "log_ratio") if (v := getattr(seen, n)) is not None and v.ndim == 1}
    if given := sorted(n for n in per_row if getattr(seen, n) is not None):
        raise ValueError(f"{', '.join(given)}: given one a row, and a row holds several documents")


_FIELDS = Observed.__dataclass_fields__
_STATS = ("top_ids", "top_logps", "rank", "sum_p2", "support95", "self_certainty", "logsumexp")


def _valid(seen: Observed) -> Tensor:
    return seen.mask.reshape(-1) != 0


def _all_rows(valid: Tensor) -> Tensor:
    # On a GPU the number of valid rows is not known without waiting for it; padding is dropped on the host.
    if valid.device.type == "cpu":
        return valid.nonzero().squeeze(1)
    return torch.arange(valid.numel(), device=valid.device)


def _kept_rows(seen: Observed, budget: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor] | None:
    """Flat indices and reasons of the rows to keep; None: all of them."""
    if budget is None or budget >= seen.mask.numel():
        return None
    valid = _valid(seen)
    rows = _all_rows(valid)
    if budget >= rows.numel():
        return None
    index, reason = select(_scores(seen, rows), valid[rows], budget, generator)
    return rows[index], reason


def _scores(seen: Observed, rows: Tensor) -> Scores:
    entropy = seen.entropy.reshape(-1)[rows]
    if seen.advantages is None:
        return Scores(entropy)
    weights = seen.mask.reshape(-1)[rows].to(entropy.dtype)
    logp = seen.logp.reshape(-1)[rows]
    advantage = per_token(seen.advantages, seen.mask).reshape(-1)[rows].to(entropy.dtype)
    count = weights.sum().clamp(min=1)
    cov = (logp - (logp * weights).sum() / count) * (advantage - (advantage * weights).sum() / count)
    p = logp.exp()
    return Scores(entropy, p * (1 - p) * advantage.clamp(min=0), cov)


def per_token(value: Tensor, mask: Tensor) -> Tensor:
    """``value`` [B] or [B, T] as [B, T].

    Raises:
        ValueError: it has another shape.
    """
    if value.shape == mask.shape[:1]:
        return value.unsqueeze(1).expand(mask.shape)
    if value.shape == mask.shape:
        return value
    raise ValueError(
        f"expected one value a response {tuple(mask.shape[:1])} or a token {tuple(mask.shape)}, "
        f"found {tuple(value.shape)}"
    )


def _stored(tensors: dict[str, Tensor], keep: Keep) -> Columns | None:
    pieces, pattern, sizes = packed(tensors)
    span = keep(pieces)
    return None if span is None else Columns(pattern, sizes, span)


def _to_host(tensors: dict[str, Tensor], shape: tuple[int, int], measured_all: bool, keep: Keep | None) -> Capture:
    on_gpu = any(t.is_cuda for t in tensors.values())
    if not on_gpu and keep is not None and (stored := _stored(tensors, keep)) is not None:
        return Capture({}, shape, measured_all, stored=stored)
    if not on_gpu:
        # A copy of what is the trainer's, which may reuse or change it before the background thread gets there.
        return Capture({k: v.detach().clone() if k in _FIELDS else v for k, v in tensors.items()}, shape, measured_all)
    host = {}
    for name, value in tensors.items():
        target = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        host[name] = target.copy_(value.detach(), non_blocking=True)
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch gives no types
    ready.record()
    return Capture(host, shape, measured_all, ready)
