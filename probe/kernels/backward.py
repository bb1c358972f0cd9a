"""``TokenStats`` with gradients: for losses that pull on log-prob, entropy, the candidates, sum p^2 or self-certainty.

Saved for the backward: the logits, or hidden states and head, that exist anyway, and a few numbers a row. From hidden
states the tiles of logits are made again, so neither logits nor their gradient ever exist in full.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from entrostat.probe.kernels.coefficients import DIFFERENTIABLE, Coefficients, coefficients, write_single_columns
from entrostat.probe.kernels.finished import Finished
from entrostat.probe.kernels.head_tiles import head_tile
from entrostat.probe.kernels.launch import launched_on
from entrostat.probe.kernels.layout import Layout, layout
from entrostat.probe.kernels.logit_gradient import logit_gradient
from entrostat.probe.kernels.tempering import Tempering
from entrostat.probe.kernels.triton_stats import measured, measured_head, tempering_of
from entrostat.probe.token_stats import TokenStats

_FIELDS = tuple(TokenStats.__dataclass_fields__)


def from_logits(
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float | None = None,
    n: int = 8,
    expect_masked: bool = False,
    cut: Layout | None = None,
) -> TokenStats:
    """``triton_stats.from_logits`` whose float fields carry gradients to ``logits``; ids and counts are constants.

    The gradient is [N, V] in the logits' dtype. Rows that say nothing and masked candidates get 0. The temperature gets
    no gradient.
    """
    settings = temperature, softcap, logit_scale, n, expect_masked, cut
    return TokenStats(*_FromLogits.apply(logits, labels, settings))  # type: ignore[no-untyped-call]


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
    expect_masked: bool = False,
    cut: Layout | None = None,
) -> TokenStats:
    """``triton_stats.from_hidden`` whose float fields carry gradients to ``hidden``, ``head_weight`` and ``bias``.

    Each gradient is added up in float32 over the tiles and rounded once: rounding every tile of the head's gradient to
    bfloat16 biases training (TRL, ``trl/kernels/chunked_logprob.py``, saw the entropy drift down).
    """
    settings = temperature, softcap, logit_scale, n, (row_tile, vocab_tile), expect_masked, cut
    return TokenStats(*_FromHidden.apply(hidden, head_weight, bias, labels, settings))  # type: ignore[no-untyped-call]


class _FromLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, settings: Any) -> tuple[Tensor, ...]:
        temperature, softcap, logit_scale, n, expect_masked, cut = settings
        found = measured(logits, labels, temperature, softcap, logit_scale, n, expect_masked, cut)
        ctx.tempering = tempering_of(logits, temperature, softcap, logit_scale)
        ctx.cut = cut or layout(logits.device, logits.dtype, logits.shape[1])
        return _keep(ctx, found, labels, logits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found, labels, (logits,) = _kept(ctx)
        wanted = _coefficients(found, labels, ctx.tempering, gradients)
        out = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        _write(logits, out, 0, _Rows.of(found, ctx.tempering, wanted), ctx.cut)
        return out, None, None


class _FromHidden(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head_weight: Tensor, bias: Tensor | None, labels: Tensor, settings: Any
    ) -> tuple[Tensor, ...]:
        temperature, softcap, logit_scale, n, tile, expect_masked, cut = settings
        found = measured_head(
            hidden, head_weight, bias, labels, temperature, softcap, logit_scale, n, tile, expect_masked, cut
        )
        ctx.tempering, ctx.tile, ctx.cut = tempering_of(hidden, temperature, softcap, logit_scale), tile, cut
        return _keep(ctx, found, labels, hidden, head_weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found, labels, (hidden, head_weight, bias) = _kept(ctx)
        wanted = _coefficients(found, labels, ctx.tempering, gradients)
        row_tile, vocab_tile = ctx.tile
        # Reads a number back; it saves three products of each row that is left out (advantage 0, padding).
        moving = wanted.is_moving.nonzero().squeeze(1)
        rows, states = _Rows.of(found, ctx.tempering, wanted).at(moving), hidden[moving]
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        of_states = torch.zeros(states.shape, device=hidden.device) if to_hidden else None
        d_weight = torch.zeros_like(head_weight) if to_weight else None
        d_bias = torch.zeros_like(bias) if to_bias else None
        # Columns outside: the head's gradient needs float32 for one tile of columns only.
        for c0 in range(0, head_weight.shape[0] if len(moving) else 0, vocab_tile):
            columns = slice(c0, c0 + vocab_tile)
            weight, shift = head_weight[columns], None if bias is None else bias[columns]
            cut = ctx.cut or layout(hidden.device, hidden.dtype, weight.shape[0])
            of_weight = torch.zeros(weight.shape, device=hidden.device)
            of_bias = torch.zeros(weight.shape[0], device=hidden.device)
            for r0 in range(0, len(states), row_tile):
                part = slice(r0, r0 + row_tile)
                tile = head_tile(states[part], weight, shift)
                _write(tile, tile, c0, rows.at(part), cut)
                if of_states is not None:
                    of_states[part] += _product(tile, weight)
                if to_weight:
                    of_weight += _product(tile.T, states[part])
                if to_bias:
                    of_bias += tile.sum(0, dtype=torch.float32)
            if d_weight is not None:
                d_weight[columns] = of_weight
            if d_bias is not None:
                d_bias[columns] = of_bias
        d_hidden = None
        if of_states is not None:
            d_hidden = torch.zeros_like(hidden).index_copy_(0, moving, of_states.to(hidden.dtype))
        return d_hidden, d_weight, d_bias, None, None


def _keep(ctx: Any, found: Finished, labels: Tensor, *inputs: Tensor | None) -> tuple[Tensor, ...]:
    """Save for the backward; the statistics in the order of their fields."""
    fields = tuple(getattr(found.stats, name) for name in _FIELDS)
    labels = labels.to(fields[0].device, torch.int64)
    others = found.reference, found.log_mass, found.label_logits, found.top_logits
    ctx.save_for_backward(labels, *others, *fields, *inputs)
    ctx.mark_non_differentiable(*(f for name, f in zip(_FIELDS, fields, strict=True) if name not in DIFFERENTIABLE))
    ctx.set_materialize_grads(False)
    return fields


def _kept(ctx: Any) -> tuple[Finished, Tensor, tuple[Tensor, ...]]:
    labels, reference, log_mass, label_logits, top_logits, *rest = ctx.saved_tensors
    stats = TokenStats(*rest[: len(_FIELDS)])
    return Finished(stats, reference, log_mass, label_logits, top_logits), labels, tuple(rest[len(_FIELDS) :])


def _coefficients(
    found: Finished, labels: Tensor, tempering: Tempering, gradients: tuple[Tensor | None, ...]
) -> Coefficients:
    by_name = dict(zip(_FIELDS, gradients, strict=True))
    return coefficients(found, labels, tempering, {name: by_name[name] for name in DIFFERENTIABLE})


@dataclass(frozen=True, slots=True)
class _Rows:
    """What ``logit_gradient`` has to know of k rows: [k], and the coefficients of each."""

    tempering: Tempering
    bits: Tensor
    reference: Tensor
    log_mass: Tensor
    wanted: Coefficients

    @staticmethod
    def of(found: Finished, tempering: Tempering, wanted: Coefficients) -> "_Rows":
        """All of them."""
        return _Rows(tempering, tempering.bits, found.reference, found.log_mass, wanted)

    def at(self, rows: Tensor | slice) -> "_Rows":
        """Some of them."""
        return _Rows(self.tempering, self.bits[rows], self.reference[rows], self.log_mass[rows], self.wanted.at(rows))


def _write(logits: Tensor, out: Tensor, first: int, rows: _Rows, cut: Layout) -> None:
    """Into ``out`` the gradient of raw logits [k, columns] from column ``first`` on; may be the same tensor."""
    num_rows, columns = logits.shape
    if num_rows == 0:
        return
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    with launched_on(logits.device):
        logit_gradient[(num_rows, cut.num_parts(columns))](
            logits, logits.stride(0), out, out.stride(0), rows.bits,
            rows.reference, rows.log_mass, rows.wanted.dense.contiguous(),
            columns, cut.block * cut.part_blocks, num_rows,
            BLOCK=cut.block, CAP=rows.tempering.cap, SCALE=rows.tempering.scale, num_warps=cut.num_warps,
        )  # fmt: skip
    write_single_columns(out, first, rows.wanted)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32; of 16-bit inputs added up in float32 and not rounded in between."""
    with torch.autocast(a.device.type, enabled=False):
        if a.dtype == torch.float32:
            return a @ b
        if a.device.type == "cuda" and _HAS_OUT_DTYPE:
            return torch.mm(a, b, out_dtype=torch.float32)
        return a.float() @ b.float()


_HAS_OUT_DTYPE = tuple(int(x) for x in torch.__version__.split(".")[:2]) >= (2, 8)
