# mypy: ignore-errors
# Triton's language, not Python's: its values have no static types.
"""The part of the logits' gradient that every column has: ``p (A + B log p + C p) + D``, in one read and one write.

One kernel for all statistics: what is asked for is in the four numbers a row (``coefficients``). What single columns
have beside it (the label's, the candidates') is written over it afterwards, computed whole: nothing is rounded twice.
"""

import triton
import triton.language as tl

from entrostat.probe.kernels.softcap import capped


@triton.jit
def _gradient(x, k, reference, log_mass, a, b, c, d, CAP: tl.constexpr, SCALE: tl.constexpr):
    v = capped(x, CAP, SCALE)
    u = tl.fma(v, k, -reference) - log_mass  # log2 p
    p = tl.exp2(u)
    g = tl.fma(p, tl.fma(u, b, tl.fma(p, c, a)), d)
    if CAP > 0.0:
        t = v * (1.0 / CAP)
        g = g * (SCALE * tl.fma(-t, t, 1.0))
    return tl.where(tl.abs(x) < float("inf"), g, 0.0)  # a masked candidate cannot move


@triton.jit(do_not_specialize=["num_rows"])
def logit_gradient(
    logits,  # [num_rows, num_columns], rows row_stride apart
    row_stride,
    gradient,  # [num_rows, num_columns], rows gradient_stride apart, out; may be the logits themselves
    gradient_stride,
    factors,  # [num_rows] float32, the k of fold
    references,  # [num_rows] float32
    log_masses,  # [num_rows] float32, base 2
    coefficients,  # [4, num_rows] float32: A, B ln 2, C, D, times the slope of the tempering but for the soft-cap's
    num_columns,
    part_columns,
    num_rows,
    BLOCK: tl.constexpr,
    CAP: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Grid (num_rows, parts)."""
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * part_columns
    end = tl.minimum(begin + part_columns, num_columns)
    lanes = tl.arange(0, BLOCK)
    out = gradient + row * gradient_stride
    a = tl.load(coefficients + row)
    b = tl.load(coefficients + num_rows + row)
    c = tl.load(coefficients + 2 * num_rows + row)
    d = tl.load(coefficients + 3 * num_rows + row)
    if (a == 0.0) & (b == 0.0) & (c == 0.0) & (d == 0.0):  # nothing is read
        zeros = tl.zeros((BLOCK,), tl.float32).to(gradient.dtype.element_ty)
        for start in range(begin, end, BLOCK):
            tl.store(out + start + lanes, zeros, mask=start + lanes < end)
        return
    x_row = logits + row * row_stride
    k = tl.load(factors + row)
    reference = tl.load(references + row)
    log_mass = tl.load(log_masses + row)
    whole = begin + ((end - begin) // BLOCK) * BLOCK
    for start in range(begin, whole, BLOCK):
        x = tl.load(x_row + start + lanes).to(tl.float32)
        g = _gradient(x, k, reference, log_mass, a, b, c, d, CAP, SCALE)
        tl.store(out + start + lanes, g.to(gradient.dtype.element_ty))
    if whole < end:
        is_column = whole + lanes < end
        x = tl.load(x_row + whole + lanes, mask=is_column, other=-float("inf")).to(tl.float32)
        g = _gradient(x, k, reference, log_mass, a, b, c, d, CAP, SCALE)
        tl.store(out + whole + lanes, g.to(gradient.dtype.element_ty), mask=is_column)
