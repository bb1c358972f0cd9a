"""How a row is cut up: by architecture, dtype and width, never by how many rows there are, so its bits stay its own."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """How the kernels walk a row.

    Args:
        block: columns at a time; a power of two.
        sub: columns a maximum; divides ``block``.
        part_blocks: blocks a part; a part is one program of the grid and has sums of its own.
        num_warps: of ``fold``.
        top_warps: of ``top_candidates`` with up to 16 slots.
    """

    block: int
    sub: int
    part_blocks: int
    num_warps: int
    top_warps: int

    def num_parts(self, num_columns: int) -> int:
        """Parts of a row."""
        return -(-num_columns // (self.block * self.part_blocks))

    def warps_of_top(self, slots: int) -> int:
        """Of ``top_candidates`` with so many slots; with fewer the logits read again would not fit in registers."""
        return self.top_warps * max(1, slots // 16)

    def num_blocks(self, num_columns: int) -> int:
        """Maxima of a row."""
        return -(-num_columns // self.sub)


# (oldest major version of the architecture, bytes a logit): what compiles without a stack at most registers that two
# blocks of threads of an SM can share (test_compile_gate). No timing chose among them yet: no GPU has run this.
_BLOCKS = {
    (8, 2): (8192, 8),
    (8, 4): (4096, 8),
    (9, 2): (8192, 8),
    (9, 4): (4096, 8),
    (10, 2): (8192, 8),
    (10, 4): (4096, 8),
}
_PARTS = 4  # of a long row: enough programs to fill a GPU from about 130 rows on


def layout(device: torch.device, dtype: torch.dtype, num_columns: int) -> Layout:
    """The layout of rows of ``num_columns`` logits on this device."""
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    return layout_of(major, dtype.itemsize, num_columns)


def layout_of(major: int, itemsize: int, num_columns: int) -> Layout:
    """The same by the architecture's major version and the bytes of a logit."""
    known = max((m for m, size in _BLOCKS if size == itemsize and m <= major), default=8)
    block, num_warps = _BLOCKS[known, itemsize]
    num_blocks = -(-num_columns // block)
    part_blocks = max(1, -(-num_blocks // _PARTS))
    # Below 64k columns a maximum over 64 leaves fewer logits to read twice.
    sub = 64 if num_columns <= 65536 else 128
    return Layout(block, sub, part_blocks, num_warps, top_warps=1 if itemsize == 2 else 4)
