# mypy: ignore-errors
# Triton's language, not Python's: its values have no static types.
"""One read of the logits: the sums of each row, and a maximum per SUB columns for ``top_candidates``.

With v the logit (soft-capped), k = log2(e) / temperature and r a reference of the row's part, u = v k - r and

    S = sum 2^u,  A = sum 2^u u,  Q = sum 2^(2u),  T = sum u over finite logits,  C = how many are finite.

r is optimistic: the largest logit of the part's first block, so that the loop rescales nothing and reduces nothing
across threads. A part whose sums tell that its maximum lies more than 30 bits (21 nats) above r, or that it holds an
-inf (0 * -inf is NaN), is done again relative to its true maximum. Beyond 30 bits ln S - A / S would lose digits; 63
would overflow.

A part is a fixed range of columns: how many rows there are changes nothing in it (``layout``).
"""

import triton
import triton.language as tl

from entrostat.probe.kernels.softcap import capped

_NAN_TOO = tl.constexpr(tl.PropagateNan.ALL)
NUM_SUMS = 6  # r, S, A, Q, T, C; in the kernel, as 2**30, a bare number: its interpreter takes no constexpr global


@triton.jit
def _add_lanes(x, k, reference, s, a, q, t, c, CAP: tl.constexpr, SCALE: tl.constexpr, MASKED: tl.constexpr):
    """One logit a lane. An explicit fma: Triton 3.10 no longer fuses by itself."""
    u = tl.fma(capped(x, CAP, SCALE), k, -reference)
    if MASKED:
        is_finite = tl.abs(x) < float("inf")
        t += tl.where(is_finite, u, 0.0)
        c += tl.where(is_finite, 1.0, 0.0)
        # 2^-1000 is 0, and 0 * -1000 is 0 where 0 * -inf is NaN. A plain maximum would swallow a NaN logit.
        u = tl.maximum(u, -1000.0, propagate_nan=_NAN_TOO)
    else:
        t += u
    e = tl.exp2(u)
    s += e
    a = tl.fma(e, u, a)
    q = tl.fma(e, e, q)
    return s, a, q, t, c


@triton.jit
def _add(
    x, k, reference, s, a, q, t, c, BLOCK: tl.constexpr, CAP: tl.constexpr, SCALE: tl.constexpr, MASKED: tl.constexpr
):
    """A block, four logits after another into BLOCK // 4 lanes: as many instructions, a quarter of the registers."""
    even, odd = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
    x0, x1 = tl.split(tl.reshape(even, (BLOCK // 4, 2)))
    x2, x3 = tl.split(tl.reshape(odd, (BLOCK // 4, 2)))
    s, a, q, t, c = _add_lanes(x0, k, reference, s, a, q, t, c, CAP, SCALE, MASKED)
    s, a, q, t, c = _add_lanes(x1, k, reference, s, a, q, t, c, CAP, SCALE, MASKED)
    s, a, q, t, c = _add_lanes(x2, k, reference, s, a, q, t, c, CAP, SCALE, MASKED)
    s, a, q, t, c = _add_lanes(x3, k, reference, s, a, q, t, c, CAP, SCALE, MASKED)
    return s, a, q, t, c


@triton.jit
def _store_maxima(x, max_row, start, end, SUB: tl.constexpr, BLOCK: tl.constexpr, IS_TAIL: tl.constexpr):
    """Exact in the logits' own dtype: each is one of them."""
    group = tl.arange(0, BLOCK // SUB)
    best = tl.max(tl.reshape(x, (BLOCK // SUB, SUB)), axis=1).to(max_row.dtype.element_ty)
    if IS_TAIL:
        tl.store(max_row + start // SUB + group, best, mask=start + group * SUB < end)
    else:
        tl.store(max_row + start // SUB + group, best)


@triton.jit(do_not_specialize=["first_column", "first_part", "num_rows"])
def fold(
    logits,  # [num_rows, num_columns], rows row_stride apart
    row_stride,
    labels,  # [num_rows] int64, ids of the whole vocabulary
    factors,  # [num_rows] float32, k
    sums,  # [parts, NUM_SUMS, num_rows] float32, out
    label_logits,  # [num_rows] float32, out where the label is among these columns
    maxima,  # [num_rows, maxima_stride] in the logits' dtype, out
    maxima_stride,
    first_column,  # the id of column 0
    num_columns,
    part_columns,  # a multiple of BLOCK
    num_rows,
    first_part,
    BLOCK: tl.constexpr,
    SUB: tl.constexpr,
    CAP: tl.constexpr,
    SCALE: tl.constexpr,
    MASKED: tl.constexpr,  # -inf logits are expected in most rows: no row is done twice for them
    WITH_MAXIMA: tl.constexpr,
):
    """Grid (num_rows, parts)."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    label = tl.load(labels + row)
    if label < 0:  # ignored; ``finish`` looks at no sum of it
        return
    x_row = logits + row * row_stride
    max_row = maxima + row * maxima_stride
    k = tl.load(factors + row)
    begin = part * part_columns
    end = tl.minimum(begin + part_columns, num_columns)
    lanes = tl.arange(0, BLOCK)
    zeros = tl.zeros((BLOCK // 4,), tl.float32)
    s, a, q, t, c = zeros, zeros, zeros, zeros, zeros
    x = tl.load(x_row + begin + lanes, mask=begin + lanes < end, other=-float("inf")).to(tl.float32)
    reference = capped(tl.max(x, axis=0), CAP, SCALE) * k
    reference = tl.where(tl.abs(reference) < float("inf"), reference, 0.0)
    whole = begin + ((end - begin) // BLOCK) * BLOCK
    for start in range(begin, whole, BLOCK):
        x = tl.load(x_row + start + lanes).to(tl.float32)
        if WITH_MAXIMA:
            _store_maxima(x, max_row, start, end, SUB, BLOCK, False)
        s, a, q, t, c = _add(x, k, reference, s, a, q, t, c, BLOCK, CAP, SCALE, MASKED)
    count = 0.0
    if not MASKED:  # the loop counted none: all its logits are finite, or A is NaN and the part is done again
        count += (whole - begin).to(tl.float32)
    if whole < end:
        x = tl.load(x_row + whole + lanes, mask=whole + lanes < end, other=-float("inf")).to(tl.float32)
        if WITH_MAXIMA:
            _store_maxima(x, max_row, whole, end, SUB, BLOCK, True)
        s, a, q, t, c = _add(x, k, reference, s, a, q, t, c, BLOCK, CAP, SCALE, True)
    S = tl.sum(s, axis=0)
    A = tl.sum(a, axis=0)
    Q = tl.sum(q, axis=0)
    T = tl.sum(t, axis=0)
    C = tl.sum(c, axis=0) + count
    if (S > 1073741824.0) | (S != S) | (A != A):
        highest = tl.full((BLOCK,), -float("inf"), tl.float32)
        for start in range(begin, end, BLOCK):
            x = tl.load(x_row + start + lanes, mask=start + lanes < end, other=-float("inf")).to(tl.float32)
            highest = tl.maximum(highest, x)
        reference = capped(tl.max(highest, axis=0), CAP, SCALE) * k
        # +inf stays: inf - inf makes the row NaN, as it must be.
        reference = tl.where(reference > -float("inf"), reference, 0.0)
        s, a, q, t, c = zeros, zeros, zeros, zeros, zeros
        for start in range(begin, end, BLOCK):
            x = tl.load(x_row + start + lanes, mask=start + lanes < end, other=-float("inf")).to(tl.float32)
            s, a, q, t, c = _add(x, k, reference, s, a, q, t, c, BLOCK, CAP, SCALE, True)
        S = tl.sum(s, axis=0)
        A = tl.sum(a, axis=0)
        Q = tl.sum(q, axis=0)
        T = tl.sum(t, axis=0)
        C = tl.sum(c, axis=0)
    out = sums + (first_part + part).to(tl.int64) * 6 * num_rows + row
    tl.store(out, reference)
    tl.store(out + num_rows, S)
    tl.store(out + 2 * num_rows, A)
    tl.store(out + 3 * num_rows, Q)
    tl.store(out + 4 * num_rows, T)
    tl.store(out + 5 * num_rows, C)
    place = label - first_column
    if (place >= begin) & (place < end):
        tl.store(label_logits + row, tl.load(x_row + place).to(tl.float32))
