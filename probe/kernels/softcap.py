# mypy: ignore-errors
# Triton's language, not Python's: its values have no static types.
"""The final soft-cap of logits inside a kernel: ``cap * tanh(scale * x / cap)`` (Gemma); infinities and NaN stay."""

import triton
import triton.language as tl


@triton.jit
def _tanh(y):
    """Hyperbolic tangent to 1.2e-7 relative; the interpreter of Triton's language knows none.

    Below 0.625, where 1 - 2 / (1 + e^2y) loses its digits, an odd polynomial: (tanh(y) / y - 1) / y^2 interpolated in
    y^2 at the 5 Chebyshev nodes of [0, 0.625^2].
    """
    size = tl.abs(y)
    far = 1.0 - 2.0 / (1.0 + tl.exp2(2.8853900817779268 * size))  # 2 log2(e)
    w = y * y
    near = tl.fma(w, -0.006096714165908197, 0.020997178999074752)
    near = tl.fma(w, near, -0.05385090957851358)
    near = tl.fma(w, near, 0.13332769736976327)
    near = tl.fma(w, near, -0.33333328944134255)
    return tl.where(size < 0.625, tl.fma(y * w, near, y), tl.where(y < 0, -far, far))


@triton.jit
def capped(x, CAP: tl.constexpr, SCALE: tl.constexpr):
    """x itself where CAP is 0: the scale is then part of the temperature's factor."""
    if CAP > 0.0:
        return tl.where(tl.abs(x) < float("inf"), CAP * _tanh(x * (SCALE / CAP)), x)
    else:  # noqa: RET505 - without it Triton compiles what follows, a division by 0
        return x
