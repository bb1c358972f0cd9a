"""Per-token statistics in plain torch: the reference that every faster kernel is held to.

One pass over the vocabulary in tiles; the logits of more than one tile of rows and columns never exist. The fold keeps,
for each row, the largest logit so far and sums relative to it, so that an offset of all logits costs no digits:

    Z = sum e^(z-m),  U = sum e^(z-m) (z-m),  Q = sum e^(2(z-m))
    logsumexp = m + ln Z,  entropy = ln Z - U / Z,  sum p^2 = Q / Z^2

z are the tempered logits, ``softcap * tanh(scale * z / softcap) / temperature``: the policy that samples.

Nothing is read back to the host, so what depends on a tensor's values cannot raise; it becomes NaN in its row instead.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
_SUPPORT_MASS = 0.95
_BLOCK = 64  # columns; see _largest


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Statistics of N tokens (``methods.md`` section 1). Nats; float32, or float64 for float64 input.

    Args:
        logp: [N] log-prob of the label.
        entropy: [N] over the whole vocabulary (Exchange Eq. 3).
        logsumexp: [N] of the tempered logits.
        top_ids: [N, n] the most likely candidates, ties to the lower id; -1 where fewer than n are finite.
        top_logps: [N, n] their log-probs; -inf where there is none.
        rank: [N] of the label, 1 = most likely; n + 1 when it is beyond the n kept.
        is_top1: [N] bool, rank is 1 (CaSP Eq. 5).
        sum_p2: [N] sum of squared probabilities.
        support95: [N] candidates that reach 0.95 of the mass, most likely first; n + 1 means "more than n".
        self_certainty: [N] KL(uniform || p) over the finite logits.
        num_finite: [N] how many logits were finite.

    A masked candidate (-inf) adds nothing to the entropy and is left out of self_certainty's mean; as the label it has
    logp -inf and rank n + 1. Where a row says nothing, its floats are NaN, its ids -1, its rank and support 0:

    - ignored: the label is negative, -100 by custom (num_finite is 0 too);
    - a NaN or +inf logit, or a temperature of the row that is not above 0;
    - no finite logit at all (logsumexp is then -inf).

    A label outside the vocabulary has logp NaN and rank n + 1; the rest of its row stands.
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

    The product's last bits may depend on how many rows it has, for BLAS picks its kernel by shape; the fold's do not.

    Args:
        hidden: [N, d] the states that predict the labels.
        head_weight: [V, d].
        labels: [N] int64; -100 ignores a row.
        bias: [V].
        temperature: of sampling, above 0; a number or one a row.
        softcap: final soft-cap of the logits (Gemma).
        logit_scale: factor of the logits, above 0 (Cohere, Granite).
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
            product = hidden[r0:r1] @ head_weight[c0:c1].T
            # Rounded before the bias, not after: so does TRL's fused head (trl/kernels/chunked_logprob.py).
            return product if bias is None else product.add_(bias[c0:c1].to(product.dtype))

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
    _check(labels, num_rows, softcap, logit_scale, n, row_tile, vocab_tile)
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    heat = _temperature(temperature, num_rows, dtype, like.device)
    parts = []
    for r0 in range(0, max(num_rows, 1), row_tile):
        r1 = min(r0 + row_tile, num_rows)
        fold = _Fold(labels[r0:r1], n, dtype)
        for c0 in range(0, num_vocab, vocab_tile):
            raw = tile(r0, r1, c0, min(c0 + vocab_tile, num_vocab)).to(dtype)
            fold.add(c0, tempered(raw, heat[r0:r1], softcap, logit_scale))
        parts.append(fold.finish())
    names = TokenStats.__dataclass_fields__
    return TokenStats(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})


def _check(
    labels: Tensor,
    num_rows: int,
    softcap: float | None,
    logit_scale: float | None,
    n: int,
    row_tile: int,
    vocab_tile: int,
) -> None:
    if labels.shape != (num_rows,):
        raise ValueError(f"labels {tuple(labels.shape)} must be [N] = ({num_rows},): flatten them as the rows are")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"labels are {labels.dtype}: give token ids, int64")
    if n < 1 or row_tile < 1 or vocab_tile < 1:
        raise ValueError(f"n={n}, row_tile={row_tile}, vocab_tile={vocab_tile} must be at least 1")
    for name, value in (("softcap", softcap), ("logit_scale", logit_scale)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name}={value}: it must be above 0 and finite; None switches it off")


def _temperature(value: float | Tensor, num_rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        if value.shape not in ((), (num_rows,)):
            raise ValueError(f"temperature {tuple(value.shape)} must be a number or one a row, ({num_rows},)")
        # Looking at the values would wait for the device: a wrong one makes its row NaN.
        value = value.to(device, dtype)
        return torch.where((value > 0) & value.isfinite(), value, torch.nan).expand(num_rows).unsqueeze(1)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"temperature={value}: it must be above 0 and finite")
    return torch.full((num_rows, 1), value, dtype=dtype, device=device)


def tempered(raw: Tensor, heat: Tensor, softcap: float | None, logit_scale: float | None) -> Tensor:
    """Logits of the policy that samples, of the model's raw ones [k, V]; ``heat`` [k, 1] is the temperature."""
    z = raw if logit_scale is None else raw * logit_scale
    if softcap is not None:
        # tanh would lift a masked candidate to -softcap, and hide an overflow behind +softcap.
        z = torch.where(z.isinf(), z, softcap * torch.tanh(z / softcap))
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
        self.label_z = torch.full_like(self.largest, torch.nan)  # stays so where no tile has the label
        self.top_z = torch.full((rows, n), -torch.inf, dtype=dtype, device=device)
        self.top_ids = torch.full((rows, n), -1, dtype=torch.int64, device=device)

    def add(self, first: int, z: Tensor) -> None:
        """Take columns ``first`` and on, [rows, columns] tempered logits."""
        self._rescale(z.amax(1, keepdim=True))
        gap = z - self.largest.masked_fill(self.largest == -torch.inf, 0.0)
        e = gap.exp()
        is_finite = z.isfinite()
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
        new = torch.maximum(self.largest, largest)  # lets NaN through
        shift = torch.where(self.largest == -torch.inf, 0.0, self.largest - new)
        factor = shift.exp()
        # factor * shift first: after a tile of logits near -3e38 (masked by finfo.min) shift * mass overflows.
        self.slope = factor * self.slope + (factor * shift) * self.mass
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
        z, ids = _largest(z, self.n)
        # What was found before comes first, so that of equal logits the lower id stays ahead.
        both, both_ids = torch.cat([self.top_z, z], 1), torch.cat([self.top_ids, ids + first], 1)
        order = both.sort(dim=1, descending=True, stable=True).indices[:, : self.n]
        self.top_z, self.top_ids = both.gather(1, order), both_ids.gather(1, order)

    def finish(self) -> TokenStats:
        """The statistics of the rows."""
        log_mass = self.mass.log()
        logsumexp = self.largest + log_mass
        entropy = log_mass - self.slope / self.mass
        count = self.count.clamp(min=1).to(self.mass.dtype)  # the log of an integer would be float32
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
        # A NaN or +inf logit is the largest of its row.
        is_nan = is_ignored | self.largest.isnan().squeeze(1) | (self.largest == torch.inf).squeeze(1)
        is_void = is_nan | (self.largest == -torch.inf).squeeze(1)
        return TokenStats(
            logp=_nan_where(is_void, logp.squeeze(1)),
            entropy=_nan_where(is_void, entropy.squeeze(1).clamp(min=0)),
            logsumexp=_nan_where(is_nan, logsumexp.squeeze(1)),
            top_ids=top_ids.masked_fill(is_void.unsqueeze(1), -1),
            top_logps=_nan_where(is_void, top_logps),
            rank=rank.masked_fill(is_void, 0),
            is_top1=(rank == 1) & ~is_void,
            sum_p2=_nan_where(is_void, (self.square / self.mass.square()).squeeze(1)),
            support95=support.masked_fill(is_void, 0),
            self_certainty=_nan_where(is_void, self_certainty.squeeze(1)),
            num_finite=self.count.squeeze(1).masked_fill(is_ignored, 0),
        )


def _nan_where(rows: Tensor, values: Tensor) -> Tensor:
    """``values`` [N] or [N, n] with NaN in the given rows [N]."""
    return values.masked_fill(rows if values.ndim == 1 else rows.unsqueeze(1), torch.nan)


def _largest(z: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest of each row, [rows, n or fewer] values and columns, in order; ties to the lower column.

    In two levels: a column outside the n blocks with the largest maxima (ties to the lower block) has n columns before
    it. ``torch.topk`` on the whole row would be slower, and it leaves the choice among ties open.
    """
    num_blocks = -(-z.shape[1] // _BLOCK)
    whole = torch.nn.functional.pad(z, (0, num_blocks * _BLOCK - z.shape[1]), value=-torch.inf)
    blocks = whole.reshape(z.shape[0], num_blocks, _BLOCK)
    best = blocks.amax(2).sort(dim=1, descending=True, stable=True).indices[:, :n].sort(dim=1).values.unsqueeze(2)
    columns = (best * _BLOCK + torch.arange(_BLOCK, device=z.device)).flatten(1)
    found = blocks.gather(1, best.expand(-1, -1, _BLOCK)).flatten(1)
    order = found.sort(dim=1, descending=True, stable=True).indices[:, :n]
    return found.gather(1, order), columns.gather(1, order)
