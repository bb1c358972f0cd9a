"""Per-token statistics in plain torch: the reference that every faster kernel is held to.

One pass over the vocabulary in tiles; the logits of more than one tile of rows and columns never exist. The fold keeps,
for each row, the largest logit so far and sums relative to it, so that an offset of all logits costs no digits:

    Z = sum e^(z-m),  U = sum e^(z-m) (z-m),  Q = sum e^(2(z-m))
    logsumexp = m + ln Z,  entropy = ln Z - U / Z,  sum p^2 = Q / Z^2

z are the tempered logits, ``softcap * tanh(scale * z / softcap) / temperature``: the policy that samples.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
_SUPPORT_MASS = 0.95


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Statistics of N tokens (``methods.md`` section 1). Nats; float32, or float64 for float64 input.

    Args:
        logp: [N] log-prob of the label.
        entropy: [N] over the whole vocabulary (Exchange Eq. 3).
        logsumexp: [N] of the tempered logits.
        top_ids: [N, n] the most likely candidates, ties to the lower id; -1 where fewer than n are finite.
        top_logps: [N, n] their log-probs; -inf where there is none.
        rank: [N] of the label, 1 = most likely; n + 1 when it is beyond the n kept; 0 for an ignored row.
        is_top1: [N] bool, rank is 1 (CaSP Eq. 5).
        sum_p2: [N] sum of squared probabilities.
        support95: [N] candidates that reach 0.95 of the mass, most likely first; n + 1 means "more than n".
        self_certainty: [N] KL(uniform || p) over the finite logits.
        num_finite: [N] how many logits were finite.

    A row whose label is -100 is ignored: its floats are NaN, its ids -1, its counts 0. A row with a NaN or +inf logit
    has NaN floats. A masked candidate (-inf) adds nothing to the entropy and is left out of self_certainty's mean.
    """

    logp: Tensor
    entropy: Tensor
    logsumexp: Tensor
    top_ids: Tensor
    top_logps: Tensor
    rank: Tensor
    is_top1: Tensor
    sum_p2: Tensor
    support95: Tensor
    self_certainty: Tensor
    num_finite: Tensor


Tile = Callable[[int, int, int, int], Tensor]
"""(first row, last row, first column, last column) -> raw logits [rows, columns]."""


@torch.no_grad()
def from_hidden(
    hidden: Tensor,
    head_weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float | None = None,
    n: int = 8,
    row_tile: int = 1024,
    vocab_tile: int = 8192,
) -> TokenStats:
    """Statistics from hidden states and the head; the product runs in the inputs' precision, the fold in float32.

    Args:
        hidden: [N, d] the states that predict the labels.
        head_weight: [V, d].
        labels: [N] int64; -100 ignores a row.
        bias: [V].
        temperature: of sampling, above 0; a number or one a row.
        softcap: final soft-cap of the logits (Gemma).
        logit_scale: factor of the logits (Cohere, Granite).
        n: candidates kept.
        row_tile: rows at a time.
        vocab_tile: columns at a time: the largest tile of logits is ``row_tile x vocab_tile``.

    Raises:
        ValueError: shapes or settings that do not fit, by name.
    """
    if hidden.ndim != 2 or head_weight.ndim != 2 or hidden.shape[1] != head_weight.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)} and head_weight {tuple(head_weight.shape)} must be [N, d] and [V, d]"
        )
    if hidden.dtype != head_weight.dtype:
        raise ValueError(f"hidden is {hidden.dtype}, head_weight {head_weight.dtype}: cast one to the other")
    if bias is not None and bias.shape != head_weight.shape[:1]:
        raise ValueError(f"bias {tuple(bias.shape)} must be [V] = {tuple(head_weight.shape[:1])}")

    def tile(r0: int, r1: int, c0: int, c1: int) -> Tensor:
        # Autocast would round the product to bf16 behind our back.
        with torch.autocast(hidden.device.type, enabled=False):
            part = None if bias is None else bias[c0:c1].to(hidden.dtype)
            return torch.nn.functional.linear(hidden[r0:r1], head_weight[c0:c1], part)

    return _rows(tile, head_weight.shape[0], labels, hidden, temperature, softcap, logit_scale, n, row_tile, vocab_tile)


@torch.no_grad()
def from_logits(
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float | None = None,
    n: int = 8,
    row_tile: int = 256,
    vocab_tile: int = 8192,
) -> TokenStats:
    """Statistics from logits [N, V] that exist already; arguments and errors as in ``from_hidden``."""
    if logits.ndim != 2:
        raise ValueError(f"logits {tuple(logits.shape)} must be [N, V]: flatten batch and positions first")

    def tile(r0: int, r1: int, c0: int, c1: int) -> Tensor:
        return logits[r0:r1, c0:c1]

    return _rows(tile, logits.shape[1], labels, logits, temperature, softcap, logit_scale, n, row_tile, vocab_tile)


def _rows(
    tile: Tile,
    num_vocab: int,
    labels: Tensor,
    like: Tensor,
    temperature: float | Tensor,
    softcap: float | None,
    logit_scale: float | None,
    n: int,
    row_tile: int,
    vocab_tile: int,
) -> TokenStats:
    num_rows = like.shape[0]
    if labels.shape != (num_rows,):
        raise ValueError(f"labels {tuple(labels.shape)} must be [N] = ({num_rows},)")
    if n < 1 or row_tile < 1 or vocab_tile < 1:
        raise ValueError(f"n={n}, row_tile={row_tile}, vocab_tile={vocab_tile} must be at least 1")
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    heat = _temperature(temperature, num_rows, dtype, like.device)
    parts = []
    for r0 in range(0, max(num_rows, 1), row_tile):
        r1 = min(r0 + row_tile, num_rows)

        def columns(r0: int = r0, r1: int = r1) -> Iterator[tuple[int, Tensor]]:
            for c0 in range(0, num_vocab, vocab_tile):
                raw = tile(r0, r1, c0, min(c0 + vocab_tile, num_vocab)).to(dtype)
                yield c0, _tempered(raw, heat[r0:r1], softcap, logit_scale)

        fold = _Fold(labels[r0:r1], n, dtype)
        for c0, z in columns():
            fold.add(c0, z)
        parts.append(fold.finish())
    names = TokenStats.__dataclass_fields__
    return TokenStats(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})


def _temperature(value: float | Tensor, num_rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        if value.shape not in ((), (num_rows,)):
            raise ValueError(f"temperature {tuple(value.shape)} must be a number or one a row, ({num_rows},)")
        return value.to(device, dtype).expand(num_rows).unsqueeze(1)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"temperature={value}: it must be above 0 and finite")
    return torch.full((num_rows, 1), value, dtype=dtype, device=device)


def _tempered(raw: Tensor, heat: Tensor, softcap: float | None, logit_scale: float | None) -> Tensor:
    z = raw if logit_scale is None else raw * logit_scale
    if softcap is not None:
        # A masked candidate must stay masked: tanh would lift it to -softcap.
        z = torch.where(z == -torch.inf, z, softcap * torch.tanh(z / softcap))
    return z / heat


class _Fold:
    """Running sums of a tile of rows over the vocabulary's tiles."""

    def __init__(self, labels: Tensor, n: int, dtype: torch.dtype) -> None:
        rows, device = labels.shape[0], labels.device
        self.labels, self.n = labels, n
        self.largest = torch.full((rows, 1), -torch.inf, dtype=dtype, device=device)
        self.mass = torch.zeros(rows, 1, dtype=dtype, device=device)  # sum e
        self.slope = torch.zeros_like(self.mass)  # sum e (z - m)
        self.square = torch.zeros_like(self.mass)  # sum e^2
        self.total = torch.zeros_like(self.mass)  # sum (z - m) over finite z
        self.count = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.label_z = torch.full_like(self.largest, -torch.inf)
        self.is_bad = torch.zeros(rows, 1, dtype=torch.bool, device=device)
        self.top_z = torch.full((rows, n), -torch.inf, dtype=dtype, device=device)
        self.top_ids = torch.full((rows, n), -1, dtype=torch.int64, device=device)

    def add(self, first: int, z: Tensor) -> None:
        """Take columns ``first`` and on, [rows, columns] tempered logits."""
        self.is_bad |= (z.isnan() | (z == torch.inf)).any(1, keepdim=True)
        self._rescale(z.amax(1, keepdim=True))
        gap = z - self.largest.masked_fill(self.largest == -torch.inf, 0.0)
        e = gap.exp()
        is_finite = z != -torch.inf
        # 0 * -inf is NaN: a masked candidate's share of each sum is set, not computed.
        gap = gap.masked_fill(~is_finite, 0.0)
        self.mass += e.sum(1, keepdim=True)
        self.slope += (e * gap).sum(1, keepdim=True)
        self.square += (e * e).sum(1, keepdim=True)
        self.total += gap.sum(1, keepdim=True)
        self.count += is_finite.sum(1, keepdim=True)
        self._take_label(first, z)
        self._take_top(first, z)

    def _rescale(self, largest: Tensor) -> None:
        new = torch.maximum(self.largest, largest)
        shift = torch.where(self.largest == -torch.inf, 0.0, self.largest - new)
        factor = shift.exp()
        self.slope = factor * (self.slope + shift * self.mass)
        self.mass = self.mass * factor
        self.square = self.square * factor * factor
        self.total = self.total + shift * self.count
        self.largest = new

    def _take_label(self, first: int, z: Tensor) -> None:
        place = (self.labels - first).unsqueeze(1)
        is_here = (place >= 0) & (place < z.shape[1])
        found = z.gather(1, place.clamp(0, z.shape[1] - 1))
        self.label_z = torch.where(is_here, found, self.label_z)

    def _take_top(self, first: int, z: Tensor) -> None:
        ids = torch.arange(first, first + z.shape[1], device=z.device).expand(z.shape[0], -1)
        z, ids = _largest(z, ids, self.n)
        # What was found before comes first, so that of equal logits the lower id stays ahead.
        both, both_ids = torch.cat([self.top_z, z], 1), torch.cat([self.top_ids, ids], 1)
        order = both.sort(dim=1, descending=True, stable=True).indices[:, : self.n]
        self.top_z, self.top_ids = both.gather(1, order), both_ids.gather(1, order)

    def finish(self) -> TokenStats:
        """The statistics of the rows."""
        log_mass = self.mass.log()
        logsumexp = self.largest + log_mass
        entropy = log_mass - self.slope / self.mass
        count = self.count.clamp(min=1)
        self_certainty = log_mass - self.total / count - count.log()
        top_ids = self.top_ids.masked_fill(self.top_z == -torch.inf, -1)
        top_logps = (self.top_z - self.largest) - log_mass
        top_logps = torch.where(self.top_z == -torch.inf, -torch.inf, top_logps)
        logp = (self.label_z - self.largest) - log_mass
        hit = (top_ids == self.labels.unsqueeze(1)) & (self.labels >= 0).unsqueeze(1)
        rank = torch.where(hit.any(1), hit.int().argmax(1) + 1, self.n + 1)
        # Candidates before the mass is reached, and the one that reaches it.
        support = (top_logps.exp().cumsum(1) < _SUPPORT_MASS).sum(1) + 1
        is_ignored = self.labels < 0
        is_nan = is_ignored | self.is_bad.squeeze(1)

        def real(value: Tensor) -> Tensor:
            bad = is_nan if value.ndim == 1 else is_nan.unsqueeze(1)
            return value.masked_fill(bad, torch.nan)

        is_empty = (self.count == 0).squeeze(1)
        return TokenStats(
            logp=real(logp.squeeze(1)).masked_fill(is_empty, torch.nan),
            entropy=real(entropy.squeeze(1).clamp(min=0)),
            logsumexp=real(logsumexp.squeeze(1)),
            top_ids=top_ids.masked_fill(is_nan.unsqueeze(1), -1),
            top_logps=real(top_logps).masked_fill(is_empty.unsqueeze(1), torch.nan),
            rank=rank.masked_fill(is_ignored, 0),
            is_top1=(rank == 1) & ~is_nan,
            sum_p2=real((self.square / self.mass.square()).squeeze(1)),
            support95=support.masked_fill(is_ignored, 0),
            self_certainty=real(self_certainty.squeeze(1)).masked_fill(is_empty, torch.nan),
            num_finite=self.count.squeeze(1).masked_fill(is_ignored, 0),
        )


def _largest(z: Tensor, ids: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest of each row in order, ties to the lower id. ``torch.topk`` leaves the choice among ties open."""
    k = min(n, z.shape[1])
    values = z.topk(k, dim=1).values
    edge = values[:, -1:]
    # Above the edge all are taken; at the edge as many as fit, the lowest ids first.
    above = z > edge
    at_edge = z == edge
    room = k - above.sum(1, keepdim=True)
    taken = above | (at_edge & (at_edge.cumsum(1) <= room))
    # NaN compares false everywhere: such a row is marked bad and only its shape matters.
    order = torch.where(taken, torch.arange(z.shape[1], device=z.device), z.shape[1]).topk(k, largest=False).indices
    order = order.sort(dim=1).values
    found = z.gather(1, order)
    ranked = found.sort(dim=1, descending=True, stable=True).indices
    return found.gather(1, ranked), ids.gather(1, order).gather(1, ranked)
