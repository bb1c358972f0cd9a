# mypy: ignore-errors
# Triton's language, not Python's: its values have no static types.
"""A value and its position as one integer that sorts like (value descending, position ascending).

IEEE floats sort as integers once the sign bit is flipped, and all bits where it is set. NaN sorts below all, -0 is +0.
-1 is no key: a slot that holds nothing.
"""

import triton
import triton.language as tl


@triton.jit
def pack_32(value, idx):
    """float32 and an id below 2**31, as int64."""
    value = tl.where(value == value, value, -float("inf")) + 0.0
    bits = value.to(tl.uint32, bitcast=True)
    bits = bits ^ tl.where((bits & 0x80000000) != 0, 0xFFFFFFFF, 0x80000000).to(tl.uint32)
    return (bits.to(tl.int64) << 31) | (0x7FFFFFFF - idx).to(tl.int64)


@triton.jit
def value_of_32(key):
    """The float32 of ``pack_32``; NaN for -1."""
    bits = ((key >> 31) & 0xFFFFFFFF).to(tl.uint32)
    bits = bits ^ tl.where((bits & 0x80000000) == 0, 0xFFFFFFFF, 0x80000000).to(tl.uint32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def position_of_32(key):
    """The id of ``pack_32``."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def pack_16(value, position):
    """bfloat16 or float16 and a position below 2**15, as int32: half the work of the int64 key."""
    bits = value.to(tl.uint16, bitcast=True).to(tl.int32)
    bits = tl.where(bits == 0x8000, 0, bits)
    bits = bits ^ tl.where((bits & 0x8000) != 0, 0xFFFF, 0x8000)
    bits = tl.where(value == value, bits, 0)
    return (bits << 15) | (32767 - position)


@triton.jit
def value_of_16(key, dtype: tl.constexpr):
    """The value of ``pack_16``, in its own dtype."""
    bits = key >> 15
    bits = bits ^ tl.where((bits & 0x8000) != 0, 0x8000, 0xFFFF)
    return bits.to(tl.uint16).to(dtype, bitcast=True)


@triton.jit
def position_of_16(key):
    """The position of ``pack_16``."""
    return 32767 - (key & (32767))


@triton.jit
def largest(key, COUNT: tl.constexpr):
    """The COUNT largest of distinct keys [K], descending, -1 where there are fewer: rounds of a maximum and a mask."""
    slots = tl.arange(0, COUNT)
    kept = tl.full((COUNT,), -1, key.dtype)
    if COUNT <= 16:
        for i in tl.static_range(COUNT):
            best = tl.max(key, axis=0)
            key = tl.where(key == best, -1, key)
            kept = tl.where(slots == i, best, kept)
    else:
        for i in tl.range(COUNT):  # unrolled, 64 rounds would take seconds to compile
            best = tl.max(key, axis=0)
            key = tl.where(key == best, -1, key)
            kept = tl.where(slots == i, best, kept)
    return kept
