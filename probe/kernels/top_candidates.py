# mypy: ignore-errors
# Triton's language, not Python's: its values have no static types.
"""The exact n most likely candidates from the block maxima of ``fold``; ties to the lower id.

A candidate outside the n blocks with the largest maxima (ties to the lower block) has n candidates before it: those
maxima. So only n * SUB logits of a row are read again. The order is that of the raw logits: temperature, scale and
soft-cap keep it.
"""

import triton
import triton.language as tl

from entrostat.probe.kernels.ordered_keys import (
    largest,
    pack_16,
    pack_32,
    position_of_16,
    position_of_32,
    value_of_16,
    value_of_32,
)


@triton.jit(do_not_specialize=["first_column"])
def top_candidates(
    logits,  # [rows, num_columns], rows row_stride apart
    row_stride,
    labels,  # [rows] int64: an ignored row is skipped
    maxima,  # [rows, maxima_stride], of fold
    maxima_stride,
    kept,  # [rows, SLOTS] int64 keys, descending; in and out where IS_FIRST is off
    first_column,  # the id of column 0
    num_columns,
    num_blocks,
    SLOTS: tl.constexpr,  # a power of two, n or more
    SUB: tl.constexpr,
    BLOCKS: tl.constexpr,  # a power of two, num_blocks and SLOTS or more
    IS_FIRST: tl.constexpr,  # no columns before these
    IS_16_BIT: tl.constexpr,
):
    """Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(labels + row) < 0:
        return
    place = tl.arange(0, BLOCKS)
    slots = tl.arange(0, SLOTS)
    out = kept + row * SLOTS + slots
    is_block = place < num_blocks
    block_max = tl.load(maxima + row * maxima_stride + place, mask=is_block, other=-float("inf"))
    if not IS_FIRST:
        before = tl.load(out)
        # Columns that cannot beat the last one kept leave the row as it is: of equal logits the earlier id stays.
        if tl.max(block_max.to(tl.float32), axis=0) <= value_of_32(tl.min(before, axis=0)):
            return
    if IS_16_BIT:
        best = largest(tl.where(is_block, pack_16(block_max, place), -1), SLOTS)
        block = tl.where(best >= 0, position_of_16(best), BLOCKS + slots)
    else:
        best = largest(tl.where(is_block, pack_32(block_max, place), -1), SLOTS)
        block = tl.where(best >= 0, position_of_32(best), BLOCKS + slots)
    block = tl.sort(block)  # ascending, so that a candidate's place among the gathered orders like its id
    inner = tl.arange(0, SUB)
    columns = block[:, None] * SUB + inner[None, :]
    is_column = columns < num_columns
    x = tl.load(logits + row * row_stride + columns, mask=is_column, other=-float("inf"))
    if IS_16_BIT:
        gathered = slots[:, None] * SUB + inner[None, :]
        key = largest(tl.reshape(tl.where(is_column, pack_16(x, gathered), -1), (SLOTS * SUB,)), SLOTS)
        value = value_of_16(key, logits.dtype.element_ty).to(tl.float32)
        where = position_of_16(key)
        from_block = tl.sum(tl.where((where // SUB)[:, None] == slots[None, :], block[None, :], 0), axis=1)
        ids = from_block * SUB + where % SUB + first_column
        found = tl.where(key >= 0, pack_32(value, ids), -1)
    else:
        key = tl.where(is_column, pack_32(x.to(tl.float32), columns + first_column), -1)
        found = largest(tl.reshape(key, (SLOTS * SUB,)), SLOTS)
    if not IS_FIRST:
        # Both descend, so the larger of each pair head to tail are the SLOTS largest of the two.
        found = tl.sort(tl.maximum(before, tl.flip(found, 0)), descending=True)
    tl.store(out, found)
