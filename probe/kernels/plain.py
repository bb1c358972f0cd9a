"""The statistics in plain torch: what every faster kernel is held to.

One pass over the vocabulary in tiles; the logits of more than one tile of rows and columns never exist. The fold keeps,
for each row, the largest logit so far and sums relative to it, so that an offset of all logits costs no digits:

    Z = sum e^(z-m),  U = sum e^(z-m) (z-m),  Q = sum e^(2(z-m))
    logsumexp = m + ln Z,  entropy = ln Z - U / Z,  sum p^2 = Q / Z^2

Arguments are checked already (``probe.token_stats``); ``heat`` is the temperature, [N, 1], NaN where it is none.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from entrostat.probe.kernels.head_tiles import head_tile
from entrostat.probe.token_stats import TokenStats, tempered

_SUPPORT_MASS = 0.95
_BLOCK = 64  # columns; see _largest

Tile = Callable[[int, int, int, int], Tensor]
"""(first row, last row, first column, last column) -> raw logits [rows, columns]."""


def from_hidden(
    hidden: Tensor,
    head_weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    heat: Tensor,
    softcap: float | None,
    logit_scale: float | None,
    n: int,
    row_tile: int,
    vocab_tile: int,
) -> TokenStats:
    """``token_stats.from_hidden``."""

    def tile(r0: int, r1: int, c0: int, c1: int) -> Tensor:
        return head_tile(hidden[r0:r1], head_weight[c0:c1], None if bias is None else bias[c0:c1])

    return _rows(tile, head_weight.shape[0], labels, heat, softcap, logit_scale, n, row_tile, vocab_tile)


def from_logits(
    logits: Tensor,
    labels: Tensor,
    heat: Tensor,
    softcap: float | None,
    logit_scale: float | None,
    n: int,
    row_tile: int,
    vocab_tile: int,
) -> TokenStats:
    """``token_stats.from_logits``."""

    def tile(r0: int, r1: int, c0: int, c1: int) -> Tensor:
        return logits[r0:r1, c0:c1]

    return _rows(tile, logits.shape[1], labels, heat, softcap, logit_scale, n, row_tile, vocab_tile)


def _rows(
    tile: Tile,
    num_vocab: int,
    labels: Tensor,
    heat: Tensor,
    softcap: float | None,
    logit_scale: float | None,
    n: int,
    row_tile: int,
    vocab_tile: int,
) -> TokenStats:
    num_rows = labels.shape[0]
    parts = []
    for r0 in range(0, max(num_rows, 1), row_tile):
        r1 = min(r0 + row_tile, num_rows)
        fold = Fold(labels[r0:r1], n, heat.dtype)
        for c0 in range(0, num_vocab, vocab_tile):
            raw = tile(r0, r1, c0, min(c0 + vocab_tile, num_vocab)).to(heat.dtype)
            fold.add(c0, tempered(raw, heat[r0:r1], softcap, logit_scale))
        parts.append(fold.finish())
    return joined(parts)


def joined(parts: list[TokenStats]) -> TokenStats:
    """The rows of all parts, one after another."""
    names = TokenStats.__dataclass_fields__
    return TokenStats(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})


class Fold:
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
        self.take_label(first, z.shape[1], lambda place: z.gather(1, place))
        self._take_top(first, z)

    def merge(self, first: int, largest: Tensor, sums: Tensor, top_z: Tensor, top_ids: Tensor) -> None:
        """Take sums that are made already, of columns ``first`` and on; the label comes by ``take_label``.

        Args:
            first: of the columns.
            largest: [rows, 1] of the tempered logits.
            sums: [5, rows, 1] relative to it: e, e (z - m), e^2, z - m and 1 over finite z.
            top_z: [rows, k] the largest in order.
            top_ids: [rows, k] their columns.
        """
        dtype = self.mass.dtype
        largest = largest.to(dtype)
        self._rescale(largest)
        mass, slope, square, total, count = sums
        shift = torch.where(largest == -torch.inf, 0.0, largest - self.largest)
        factor = shift.exp()
        self.mass += factor * mass
        self.slope += factor * slope + (factor * shift) * mass
        self.square += factor * factor * square
        self.total += total + shift * count
        self.count += count.to(torch.int64)
        self._keep_top(first, top_z.to(dtype), top_ids)

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

    def take_label(self, first: int, width: int, z_of: Callable[[Tensor], Tensor]) -> None:
        """Look for the label in ``width`` columns from ``first`` on.

        Args:
            first: of the columns.
            width: how many.
            z_of: tempered logits [rows, 1] of such places, [rows, 1] within the columns.
        """
        place = (self.labels - first).unsqueeze(1)
        is_here = (place >= 0) & (place < width)
        self.label_z = torch.where(is_here, z_of(place.clamp(0, width - 1)).to(self.label_z.dtype), self.label_z)

    def _take_top(self, first: int, z: Tensor) -> None:
        self._keep_top(first, *_largest(z, self.n))

    def _keep_top(self, first: int, z: Tensor, ids: Tensor) -> None:
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
