"""Which of the kernels runs: by device, dtype and size, or as ``ENTROSTAT_KERNEL`` says; plain where one fails."""

import logging
import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeVar

import torch
from torch import Tensor

from entrostat.probe.kernels.availability import available

SWITCH = "ENTROSTAT_KERNEL"
MIN_LOGITS = 2**24
"""Logits of a call from which a CPU compiles: seconds, once, for a form 25 to 32 times as fast (make bench-kernels)."""

CPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_log = logging.getLogger("entrostat")
_failed: set["Kernel"] = set()
Result = TypeVar("Result")


class Kernel(Enum):
    """Forms of the statistics; the value is what ``ENTROSTAT_KERNEL`` takes."""

    PLAIN = "plain"
    COMPILED = "compiled"
    TRITON = "triton"


def chosen(like: Tensor, num_logits: int, n: int) -> Kernel:
    """The kernel for logits of ``like``'s device and dtype.

    By itself: Triton on a GPU that has it; on a CPU the compiled form from ``MIN_LOGITS`` logits a call. With
    ``ENTROSTAT_KERNEL=plain`` always plain; ``compiled`` compiles at any size. What cannot run here is plain all
    the same (float64, tensor subclasses, inside a user's ``torch.compile``, a kernel that failed before).

    Raises:
        ValueError: ``ENTROSTAT_KERNEL`` is something else.
    """
    # Dynamo can neither trace the switch nor nest a compilation of ours in the user's.
    if torch.compiler.is_compiling():
        return Kernel.PLAIN
    wanted = _switch()
    if wanted is Kernel.PLAIN:
        return Kernel.PLAIN
    if like.device.type == "cuda":
        return Kernel.TRITON if _usable(Kernel.TRITON) and available(like.device, like.dtype, n) else Kernel.PLAIN
    is_worth = wanted is Kernel.COMPILED or num_logits >= MIN_LOGITS
    can = like.device.type == "cpu" and like.dtype in CPU_DTYPES and type(like) in (Tensor, torch.nn.Parameter)
    return Kernel.COMPILED if is_worth and can and num_logits > 0 and _usable(Kernel.COMPILED) else Kernel.PLAIN


def attempt(kernel: Kernel, forms: Mapping[Kernel, Callable[[], Result]]) -> Result:
    """The result of ``kernel``'s form, or of the plain one where that fails: said once, then plain for good.

    A compiler may be missing or miscompile; no trainer stops for that. Running out of memory is the caller's to see.
    """
    if kernel is Kernel.PLAIN:
        return forms[Kernel.PLAIN]()
    try:
        return forms[kernel]()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises
        if kernel not in _failed:
            _failed.add(kernel)
            _log.warning(
                "token statistics: the %s kernel fails, the plain one takes its place (slower, same numbers; %s=plain "
                "silences this): %s: %s",
                kernel.value, SWITCH, type(error).__name__, str(error).partition("\n")[0],
            )  # fmt: skip
        return forms[Kernel.PLAIN]()


def _usable(kernel: Kernel) -> bool:
    return kernel not in _failed


def _switch() -> Kernel | None:
    value = os.environ.get(SWITCH, "").strip().lower()
    if value in ("", "auto"):
        return None
    try:
        return Kernel(value)
    except ValueError:
        names = ", ".join(kernel.value for kernel in Kernel)
        raise ValueError(f"{SWITCH}={value!r}: it must be one of {names}, or auto") from None
