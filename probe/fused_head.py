"""The head as one differentiable op: ``TokenStats`` of every token with gradients, and logits never in full.

Forward: ``token_stats.from_hidden``. Saved for the backward: the inputs and what is [N] or [N, n]; no logits. Backward:
each tile of logits is made anew and turned into the gradient of its logits z,

    dz = p * (A + B log p + C p) + D, plus the values that fall on the label and on the candidates,

with A, B, C, D one number a row, from the gradients g of the outputs (H entropy, s sum p^2, K the finite logits):

    logp            A = -g, and +g on the label
    entropy         A = -g H, B = -g
    top_logps       A = -sum g_i, and +g_i on candidate i; which candidates they are is a constant
    sum_p2          A = -2 g s, C = 2 g
    self_certainty  A = g, D = -g / K on the finite logits
    logsumexp       A = g

Rows whose outputs got no gradient (advantage 0, padding) have no tile at all. On a GPU with Triton, and where products
are taken in the head's own dtype, ``kernels.backward`` is the op instead: the same, each tile in one pass.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from entrostat.probe.kernels.choice import Kernel, attempt, chosen
from entrostat.probe.kernels.head_tiles import head_tile
from entrostat.probe.token_stats import TokenStats, from_hidden

DIFFERENTIABLE = ("logp", "entropy", "logsumexp", "top_logps", "sum_p2", "self_certainty")
"""The fields that carry gradients."""
_NAMES = tuple(TokenStats.__dataclass_fields__)
_LOWEST = -1e4  # exp of it is 0 in float64 too, and its product with 0 is 0, which that of -inf is not
_CACHED = 1 << 17  # numbers; a block of a tile that several passes find in a CPU's cache


def fused_head(
    hidden: Tensor,
    head_weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float | None = None,
    n: int = 8,
    dtype: torch.dtype | None = None,
    row_tile: int = 1024,
    vocab_tile: int = 8192,
) -> TokenStats:
    """``from_hidden`` with gradients to ``hidden``, ``head_weight`` and ``bias`` through the fields DIFFERENTIABLE.

    The gradients of tiles are added up in float32 (float64 for float64), whatever the inputs are: rounding each tile's
    share to bfloat16 first biases training (TRL's ``chunked_logprob.py`` measured it).

    Args:
        hidden: [N, d] the states that predict the labels.
        head_weight: [V, d].
        labels: [N] int64; a negative one ignores its row: no gradient comes from there.
        bias: [V].
        temperature: of sampling, above 0; a number or one a row; takes no gradient.
        softcap: final soft-cap of the logits (Gemma).
        logit_scale: factor of the logits, above 0 (Cohere, Granite).
        n: candidates kept.
        dtype: in which products are taken; that of ``hidden`` by default. Where the head has another one, the forward
            holds a copy of the head in it, the backward of one tile.
        row_tile: rows at a time.
        vocab_tile: columns at a time: the largest tile of logits is ``row_tile x vocab_tile``.

    Raises:
        ValueError: shapes or settings that do not fit, by name.
    """
    spec = _Spec(dtype or hidden.dtype, temperature, softcap, logit_scale, n, row_tile, vocab_tile)

    def in_torch() -> TokenStats:
        found = _FusedHead.apply(hidden, head_weight, bias, labels, spec)  # type: ignore[no-untyped-call]  # torch's
        return TokenStats(**dict(zip(_NAMES, found, strict=True)))

    def in_triton() -> TokenStats:
        from entrostat.probe.kernels import backward

        return backward.from_hidden(
            hidden.to(spec.dtype), head_weight, labels, bias=bias, temperature=temperature, softcap=softcap,
            logit_scale=logit_scale, n=n, row_tile=row_tile, vocab_tile=vocab_tile,
        )  # fmt: skip

    kernel = chosen(hidden.to(spec.dtype), hidden.shape[0] * head_weight.shape[0], n)
    # A head in another dtype would be kept as a copy until the backward, and its gradient rounded to that dtype.
    if kernel is not Kernel.TRITON or head_weight.dtype != spec.dtype:
        return in_torch()
    return attempt(kernel, {Kernel.TRITON: in_triton, Kernel.PLAIN: in_torch})


@dataclass(frozen=True, slots=True)
class _Spec:
    """What takes no gradient; as in ``fused_head``."""

    dtype: torch.dtype
    temperature: float | Tensor
    softcap: float | None
    logit_scale: float | None
    n: int
    row_tile: int
    vocab_tile: int

    @property
    def exact(self) -> torch.dtype:
        """In which everything but the products is done."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32


class _FusedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, spec: _Spec
    ) -> tuple[Tensor, ...]:
        stats = from_hidden(
            hidden.to(spec.dtype),
            weight.to(spec.dtype),
            labels,
            bias=bias,
            temperature=spec.temperature,
            softcap=spec.softcap,
            logit_scale=spec.logit_scale,
            n=spec.n,
            row_tile=spec.row_tile,
            vocab_tile=spec.vocab_tile,
        )
        ctx.spec = spec
        # Without it, an output that no loss uses would get zeros, and its term would be computed.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            hidden,
            weight,
            bias,
            labels,
            stats.logsumexp,
            stats.top_ids,
            stats.entropy,
            stats.sum_p2,
            stats.num_finite,
        )
        ctx.mark_non_differentiable(*(getattr(stats, name) for name in _NAMES if name not in DIFFERENTIABLE))
        return tuple(getattr(stats, name) for name in _NAMES)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, logsumexp, top_ids, entropy, sum_p2, num_finite = ctx.saved_tensors
        given = {name: g for name, g in zip(_NAMES, gradients, strict=True) if g is not None}
        rows = _RowGradients.of(given, labels, weight.shape[0], logsumexp, top_ids, entropy, sum_p2, num_finite)
        if rows is None or not any(ctx.needs_input_grad[:3]):
            return None, None, None, None, None
        found = _Products(ctx.spec, hidden, weight, bias, ctx.needs_input_grad).add_up(rows)
        return (*found, None, None)


@dataclass(frozen=True, slots=True)
class _RowGradients:
    """What is the same along a row, or falls on few of its columns; k rows.

    Args:
        rows: [k] which of the N.
        logsumexp: [k, 1].
        a, b, c, d: [k, 1] as in the module's formula; None where a term is absent.
        ids: [k, m] columns on which ``values`` [k, m] fall; a column may be there twice.
        values: 0 where there is no such column.
    """

    rows: Tensor
    logsumexp: Tensor
    a: Tensor
    b: Tensor | None
    c: Tensor | None
    d: Tensor | None
    ids: Tensor
    values: Tensor

    @staticmethod
    def of(
        given: dict[str, Tensor],
        labels: Tensor,
        num_vocab: int,
        logsumexp: Tensor,
        top_ids: Tensor,
        entropy: Tensor,
        sum_p2: Tensor,
        num_finite: Tensor,
    ) -> "_RowGradients | None":
        """Of the gradients of the outputs, by name; None where there is none at all."""
        if not given:
            return None
        is_ignored = labels < 0
        given = {k: g.masked_fill(is_ignored.view(-1, *[1] * (g.ndim - 1)), 0.0) for k, g in given.items()}
        a = torch.zeros_like(logsumexp)
        b = c = d = None
        ids, values = [], []
        if (g := given.get("logp")) is not None:
            g = g.masked_fill(labels >= num_vocab, 0.0)
            a = a - g
            ids.append(labels.unsqueeze(1))
            values.append(g.unsqueeze(1))
        if (g := given.get("top_logps")) is not None:
            g = g.masked_fill(top_ids < 0, 0.0)
            a = a - g.sum(1)
            ids.append(top_ids)
            values.append(g)
        if (g := given.get("logsumexp")) is not None:
            a = a + g
        # What a row without statistics says is NaN, and 0 x NaN is NaN.
        if (g := given.get("entropy")) is not None:
            a, b = a - torch.where(g == 0, g, g * entropy), -g
        if (g := given.get("sum_p2")) is not None:
            a, c = a - torch.where(g == 0, g, 2 * g * sum_p2), 2 * g
        if (g := given.get("self_certainty")) is not None:
            a, d = a + g, -g / num_finite.clamp(min=1)
        columns = torch.cat(ids, 1) if ids else labels.new_zeros(len(labels), 0)
        on_columns = torch.cat(values, 1) if values else a.new_zeros(len(labels), 0)
        per_row = [x for x in (a, b, c, d) if x is not None]
        is_in = torch.stack([x != 0 for x in (*per_row, *on_columns.unbind(1))]).any(0)
        # Reads a number back, as TRL does to find its rows; it saves three products of each row that is left out.
        rows = is_in.nonzero().squeeze(1)
        return _RowGradients(
            rows=rows,
            logsumexp=logsumexp[rows, None],
            a=a[rows, None],
            b=None if b is None else b[rows, None],
            c=None if c is None else c[rows, None],
            d=None if d is None else d[rows, None],
            ids=columns[rows],
            values=on_columns[rows],
        )

    def part(self, first: int, last: int) -> "_RowGradients":
        """Some of the rows."""
        cut = slice(first, last)
        return _RowGradients(
            rows=self.rows[cut],
            logsumexp=self.logsumexp[cut],
            a=self.a[cut],
            b=None if self.b is None else self.b[cut],
            c=None if self.c is None else self.c[cut],
            d=None if self.d is None else self.d[cut],
            ids=self.ids[cut],
            values=self.values[cut],
        )


class _Products:
    """The three gradients of one backward, a tile of columns after another."""

    def __init__(
        self, spec: _Spec, hidden: Tensor, weight: Tensor, bias: Tensor | None, needed: tuple[bool, ...]
    ) -> None:
        self.spec, self.hidden, self.weight, self.bias = spec, hidden, weight, bias
        self.needs_hidden, self.needs_weight, self.needs_bias = needed[0], needed[1], needed[2] and bias is not None
        self.heat: Tensor | float = spec.temperature
        if isinstance(self.heat, Tensor):
            self.heat = self.heat.detach().to(hidden.device, spec.exact).expand(hidden.shape[0])

    def add_up(self, rows: _RowGradients) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of hidden, weight and bias, None where none is needed."""
        num_rows, num_vocab = len(rows.rows), self.weight.shape[0]
        # The columns outside: a tile's share of the head's gradient is complete before the next one begins, so that
        # a float32 copy of a bfloat16 head's whole gradient never exists.
        chosen = self.hidden[rows.rows].to(self.spec.dtype)
        to_hidden = torch.zeros(chosen.shape, dtype=self.spec.exact, device=chosen.device)
        to_weight = torch.zeros_like(self.weight) if self.needs_weight else None
        to_bias = torch.zeros_like(self.bias) if self.needs_bias and self.bias is not None else None
        for c0 in range(0, num_vocab if num_rows else 0, self.spec.vocab_tile):
            c1 = min(c0 + self.spec.vocab_tile, num_vocab)
            head = self.weight[c0:c1].to(self.spec.dtype)
            share = head.new_zeros(head.shape, dtype=self.spec.exact) if self.needs_weight else None
            bias_share = None if to_bias is None else to_hidden.new_zeros(c1 - c0)
            for r0 in range(0, num_rows, self.spec.row_tile):
                part = rows.part(r0, r0 + self.spec.row_tile)
                states = chosen[r0 : r0 + self.spec.row_tile]
                dz = self._logit_gradient(states, head, c0, c1, part)
                if self.needs_hidden:
                    _add_product(to_hidden[r0 : r0 + self.spec.row_tile], dz, head)
                if share is not None:
                    _add_product(share, dz.T, states)
                if bias_share is not None:
                    bias_share += dz.sum(0)
            if to_weight is not None and share is not None:
                to_weight[c0:c1] = share
            if to_bias is not None and bias_share is not None:
                to_bias[c0:c1] = bias_share
        spread = None
        if self.needs_hidden:
            spread = torch.zeros_like(self.hidden)
            spread[rows.rows] = to_hidden.to(self.hidden.dtype)
        return spread, to_weight, to_bias

    def _logit_gradient(self, states: Tensor, head: Tensor, c0: int, c1: int, rows: _RowGradients) -> Tensor:
        """[k, c1 - c0] gradient of the head's raw products, in ``exact``."""
        raw = head_tile(states, head, None if self.bias is None else self.bias[c0:c1])
        tile = raw.to(self.spec.exact)  # itself, where it is that already: then it is overwritten
        heat = self.heat if not isinstance(self.heat, Tensor) else self.heat[rows.rows, None]
        step = len(tile) if tile.device.type != "cpu" else max(1, _CACHED // tile.shape[1])
        for r0 in range(0, len(tile), step):
            block_heat = heat if not isinstance(heat, Tensor) else heat[r0 : r0 + step]
            self._turn(tile[r0 : r0 + step], block_heat, c0, rows.part(r0, r0 + step))
        return tile

    def _turn(self, block: Tensor, heat: Tensor | float, c0: int, rows: _RowGradients) -> None:
        """Raw products into their gradient, in place."""
        softcap, scale = self.spec.softcap, self.spec.logit_scale or 1.0
        is_finite = block.isfinite() if rows.d is not None else None
        slope = None
        if scale != 1.0:
            block.mul_(scale)
        if softcap is not None:
            squashed = torch.tanh(block / softcap)
            slope = 1 - squashed * squashed
            # As in ``token_stats.tempered``: tanh would lift a masked candidate.
            block.copy_(torch.where(block.isinf(), block, squashed.mul_(softcap)))
        log_p = block.div_(heat).sub_(rows.logsumexp).clamp_(min=_LOWEST)
        p = log_p.exp()
        # log_p is needed for the entropy alone; else its place takes the result at once.
        if rows.b is not None:
            factor = log_p.mul_(rows.b).add_(rows.a)
            if rows.c is not None:
                factor.addcmul_(p, rows.c)
            block = factor.mul_(p)
        elif rows.c is not None:
            block = torch.mul(p, rows.c, out=block).add_(rows.a).mul_(p)
        else:
            block = torch.mul(p, rows.a, out=block)
        if rows.d is not None and is_finite is not None:
            block.add_(torch.where(is_finite, rows.d, 0.0))
        if rows.ids.shape[1]:
            place = rows.ids - c0
            is_here = (place >= 0) & (place < block.shape[1])
            values = torch.where(is_here, rows.values, 0.0)
            block.scatter_add_(1, place.clamp(0, block.shape[1] - 1), values)
        if isinstance(heat, Tensor) or heat != scale:
            block.mul_(scale / heat)
        if slope is not None:
            block.mul_(slope)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b``, in total's precision: a float32 or float64, b in that of the products."""
    with torch.autocast(a.device.type, enabled=False):
        if b.dtype == total.dtype:
            total.addmm_(a, b)
        elif a.device.type == "cuda":
            # Tensor cores take 16 bits and add up in float32; only the sum stays so.
            torch.addmm(total, a.to(b.dtype), b, out_dtype=total.dtype, out=total)
        else:
            total.addmm_(a, b.to(total.dtype))
