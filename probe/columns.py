"""Named tensors as plain bytes, and back."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from entrostat.wire.handover import Span


@dataclass(frozen=True, slots=True)
class Column:
    """One tensor: its name, dtype as torch names it, shape, and where its bytes begin."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * _dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Columns:
    """Tensors, one behind the other, in a span."""

    columns: tuple[Column, ...]
    span: Span

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], span: Span) -> "Columns":
        """As their bytes were kept, in their order."""
        made, offset = [], 0
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            made.append(Column(name, dtype, tuple(tensor.shape), offset))
            offset += made[-1].nbytes
        return cls(tuple(made), span)

    def read(self) -> dict[str, Tensor]:
        """Copies. Raises OSError."""
        return {c.name: tensor_of(c, self.span.read(c.offset, c.nbytes)) for c in self.columns}

    def described(self, data_at: int) -> dict[str, Any]:
        """For a document: where in the data they are, with the data's own begin at ``data_at`` of its file."""
        at = self.span.start - data_at
        return {c.name: [c.dtype, list(c.shape), at + c.offset] for c in self.columns}


def tensors_of(described: Mapping[str, Any], data: memoryview) -> dict[str, Tensor]:
    """What ``described`` says is in ``data``.

    Raises:
        ValueError: the data is shorter than that, or a dtype is none.
    """
    found = {}
    for name, (dtype, shape, offset) in described.items():
        column = Column(name, dtype, tuple(shape), offset)
        piece = data[offset : offset + column.nbytes]
        if len(piece) < column.nbytes:
            raise ValueError(f"{name}: {len(piece)} bytes of {column.nbytes}")
        found[name] = tensor_of(column, bytearray(piece))
    return found


def tensor_of(column: Column, data: bytearray) -> Tensor:
    """The tensor that ``data`` is, without a copy."""
    dtype = _dtype(column.dtype)
    if not data:
        return torch.empty(column.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(column.shape)


def bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's bytes, in the host's order; copied only where it is not contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")  # type: ignore[arg-type]


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found
