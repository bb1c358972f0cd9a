"""Named tensors as plain bytes, and back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from entrostat.wire.handover import Bytes, Span

Pattern = tuple[tuple[str, str, int], ...]
"""Name, dtype as torch names it, and number of dimensions of each tensor: the same at most steps of a run."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Tensors, one behind the other, in a span.

    Args:
        sizes: their shapes, one behind the other.
    """

    pattern: Pattern
    sizes: tuple[int, ...]
    span: Span

    def read(self) -> dict[str, Tensor]:
        """Copies. Raises OSError."""
        return tensors_of(self.pattern, self.sizes, memoryview(self.span.read()))


def packed(tensors: Mapping[str, Tensor]) -> tuple[list[Bytes], Pattern, tuple[int, ...]]:
    """The bytes of each, in the host's order, and what they are. Copies only what is not contiguous."""
    pieces: list[Bytes] = []
    pattern: list[tuple[str, str, int]] = []
    sizes: list[int] = []
    for name, tensor in tensors.items():
        shape = tensor.shape
        pieces.append(_bytes_of(tensor))
        pattern.append((name, _NAMES[tensor.dtype], len(shape)))
        sizes += shape
    return pieces, tuple(pattern), tuple(sizes)


def num_sizes(pattern: Pattern) -> int:
    """How many sizes its tensors' shapes have together."""
    return sum(num_dims for _, _, num_dims in pattern)


def tensors_of(pattern: Pattern, sizes: Sequence[int], data: memoryview) -> dict[str, Tensor]:
    """The tensors at the beginning of ``data``; copies.

    Raises:
        ValueError: the data is shorter than the sizes say, or a dtype is none.
    """
    found, at, left = {}, 0, iter(sizes)
    for name, dtype_name, num_dims in pattern:
        dtype, shape = _DTYPES.get(dtype_name), tuple(islice(left, num_dims))
        if dtype is None:
            raise ValueError(f"{name}: {dtype_name!r} is no dtype of a column; they are {sorted(_DTYPES)}")
        size = math.prod(shape) * dtype.itemsize
        piece = bytearray(data[at : at + size])
        if len(piece) < size:
            raise ValueError(f"{name}: {len(piece)} bytes of {size}")
        flat = torch.frombuffer(piece, dtype=dtype) if size else torch.empty(0, dtype=dtype)
        found[name], at = flat.reshape(shape), at + size
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
