"""Named tensors as plain bytes, and back."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from entrostat.wire.handover import Bytes, Span

Layout = dict[str, tuple[str, tuple[int, ...], int]]
"""Name -> dtype as torch names it, shape, and where its bytes begin."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Tensors, one behind the other, in a span."""

    layout: Layout
    span: Span

    def read(self) -> dict[str, Tensor]:
        """Copies. Raises OSError."""
        return tensors_of(self.layout, memoryview(self.span.read()))

    def within(self, data_at: int) -> Layout:
        """The layout in a file's data, which begins at ``data_at`` of the file."""
        before = self.span.start - data_at
        return {name: (dtype, shape, before + at) for name, (dtype, shape, at) in self.layout.items()}


def packed(tensors: Mapping[str, Tensor]) -> tuple[list[Bytes], Layout]:
    """The bytes of each, in the host's order, and where they will be. Copies only what is not contiguous."""
    pieces, layout, at = [], {}, 0
    for name, tensor in tensors.items():
        piece = _bytes_of(tensor)
        pieces.append(piece)
        layout[name] = (_NAMES[tensor.dtype], tuple(tensor.shape), at)
        at += piece.nbytes
    return pieces, layout


def tensors_of(layout: Layout, data: memoryview) -> dict[str, Tensor]:
    """The tensors that ``data`` has; copies.

    Raises:
        ValueError: the data is shorter than the layout says, or a dtype is none.
    """
    found = {}
    for name, (dtype_name, shape, at) in layout.items():
        dtype = _DTYPES.get(dtype_name)
        if dtype is None:
            raise ValueError(f"{name}: {dtype_name!r} is no dtype of a column; they are {sorted(_DTYPES)}")
        size = math.prod(shape) * dtype.itemsize
        piece = bytearray(data[at : at + size])
        if len(piece) < size:
            raise ValueError(f"{name}: {len(piece)} bytes of {size}")
        flat = torch.frombuffer(piece, dtype=dtype) if size else torch.empty(0, dtype=dtype)
        found[name] = flat.reshape(tuple(shape))
    return found


def _bytes_of(tensor: Tensor) -> Bytes:
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:  # numpy has none
        tensor = tensor.contiguous().view(torch.int16)
    array: np.ndarray = tensor.numpy()
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
