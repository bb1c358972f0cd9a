"""The statistics on a CPU by compiled torch, with the contract of ``probe.token_stats``: see ``row_sums``.

A compiled function has one shape, a few rows of one width; logits go through it some rows at a time. So a row's bits
come from the same instructions whatever batch it is in, no change of batch size compiles anything, and what a chunk
needs stays small. Arguments are checked already; ``heat`` is the temperature, [N, 1] float32.
"""

import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from entrostat.probe.kernels.head_tiles import head_tile
from entrostat.probe.kernels.plain import Fold, joined
from entrostat.probe.kernels.row_sums import row_sums, unpacked
from entrostat.probe.token_stats import TokenStats, tempered

_CHUNK_LOGITS = 2**21
_MAX_ROWS = 64
RowSums = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor]]

_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    # Otherwise intermediates with several uses go to memory, [rows, V] each; recomputed, they stay in registers.
    "realize_reads_threshold": 100,
    "realize_opcount_threshold": 1000,
    "compile_threads": 1,  # a pool of processes for one small file would outlive its use
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a compiled function is made for."""

    rows: int
    columns: int
    row_stride: int
    dtype: torch.dtype
    n: int
    softcap: float | None
    logit_scale: float | None
    is_heated: bool


_lock = threading.Lock()
_ready: dict[Shape, RowSums] = {}
_begun: set[Shape] = set()


def from_logits(
    logits: Tensor, labels: Tensor, heat: Tensor, softcap: float | None, logit_scale: float | None, n: int
) -> TokenStats:
    """``token_stats.from_logits``."""
    fold = Fold(labels, n, torch.float64)
    heat = heat.contiguous()
    _take_label(fold, 0, logits, heat, softcap, logit_scale)
    _take_sums(fold, 0, logits.detach(), heat, softcap, logit_scale)
    return _in_float32(fold.finish())


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
    """``token_stats.from_hidden``: a tile of logits at a time."""
    heat = heat.contiguous()
    num_rows, num_vocab = labels.shape[0], head_weight.shape[0]
    width = min(vocab_tile, num_vocab)
    parts = []
    for r0 in range(0, num_rows, row_tile):
        rows = slice(r0, min(r0 + row_tile, num_rows))
        fold = Fold(labels[rows], n, torch.float64)
        for c0 in range(0, num_vocab, width):
            columns = slice(c0, min(c0 + width, num_vocab))
            raw = head_tile(hidden[rows], head_weight[columns], None if bias is None else bias[columns]).detach()
            _take_label(fold, c0, raw, heat[rows], softcap, logit_scale)
            # The last tile is filled up: another width would be another compilation.
            raw = torch.nn.functional.pad(raw, (0, width - raw.shape[1]), value=-torch.inf)
            _take_sums(fold, c0, raw, heat[rows], softcap, logit_scale)
        parts.append(_in_float32(fold.finish()))
    return joined(parts)


def _take_label(
    fold: Fold, first: int, raw: Tensor, heat: Tensor, softcap: float | None, logit_scale: float | None
) -> None:
    def z_of(place: Tensor) -> Tensor:
        return tempered(raw.gather(1, place).float(), heat, softcap, logit_scale)

    fold.take_label(first, raw.shape[1], z_of)


def _take_sums(
    fold: Fold, first: int, raw: Tensor, heat: Tensor, softcap: float | None, logit_scale: float | None
) -> None:
    """Add columns ``first`` and on to the fold."""
    num_rows, num_columns = raw.shape
    is_heated = not bool((heat == 1).all())
    step = max(2, min(_MAX_ROWS, _CHUNK_LOGITS // num_columns))
    done = []
    for r0 in range(0, num_rows, step):
        chunk, chunk_heat, is_new = _chunk(raw, heat, r0, step)
        shape = Shape(step, num_columns, chunk.stride(0), raw.dtype, fold.n, softcap, logit_scale, is_heated)
        done.append(tuple(t[..., is_new, :] for t in _run(shape, chunk, chunk_heat if is_heated else None)))
    largest, sums, keys = (torch.cat(t, -2) for t in zip(*done, strict=True))
    top_z, top_ids = unpacked(keys)
    fold.merge(first, largest, sums.double(), top_z, top_ids)


def _chunk(raw: Tensor, heat: Tensor, r0: int, rows: int) -> tuple[Tensor, Tensor, slice]:
    """``rows`` rows from r0 on, and which of them are meant: the last chunk reaches back, or is filled up."""
    num_rows = raw.shape[0]
    if num_rows < rows:
        fill = rows - num_rows
        raw = torch.cat([raw, raw.new_zeros(fill, raw.shape[1])])
        return raw, torch.cat([heat, heat.new_ones(fill, 1)]), slice(0, num_rows)
    start = min(r0, num_rows - rows)
    chunk = raw[start : start + rows]
    return (chunk if chunk.stride(1) == 1 else chunk.contiguous()), heat[start : start + rows], slice(r0 - start, rows)


def _run(shape: Shape, raw: Tensor, heat: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """m [R, 1], sums [5, R, 1] and keys of ``row_sums``, compiled for ``shape`` when it is met first.

    No lock is held while that goes on: another thread that meets the same shape runs the function as it is meanwhile.
    """
    with _lock:
        compiled = _ready.get(shape)
        is_first = compiled is None and shape not in _begun
        _begun.add(shape)
    function = compiled or (_compiled(shape) if is_first else _uncompiled(shape))
    # Autocast is among the things a compiled function is compiled again for.
    with torch.autocast("cpu", enabled=False):
        largest, sums, keys = function(raw, heat)
    if is_first:
        with _lock:
            _ready[shape] = function
    return largest.unsqueeze(1), sums.unsqueeze(2), keys


def _uncompiled(shape: Shape) -> RowSums:
    def rows(raw: Tensor, heat: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        return row_sums(raw, heat, shape.n, shape.softcap, shape.logit_scale)

    return rows


def _compiled(shape: Shape) -> RowSums:
    plain = _uncompiled(shape)
    assert isinstance(plain, types.FunctionType)
    # Dynamo counts recompilations by code object, and gives up at the eighth; each shape has a code object of its own.
    code = plain.__code__.replace(co_name=f"rows_{shape.rows}x{shape.columns}_{len(_begun)}")
    own = types.FunctionType(code, plain.__globals__, code.co_name, closure=plain.__closure__)
    return torch.compile(own, dynamic=False, fullgraph=True, options=_OPTIONS)


def _in_float32(stats: TokenStats) -> TokenStats:
    floats = {name: getattr(stats, name) for name in TokenStats.__dataclass_fields__}
    return replace(stats, **{name: t.float() for name, t in floats.items() if t.is_floating_point()})
