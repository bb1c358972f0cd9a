"""Whether the Triton kernels can run: asked before Triton is imported, for a CPU's torch ships none."""

import functools
import importlib.util

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_CANDIDATES = 64
MIN_CAPABILITY = (8, 0)
"""The oldest architecture the kernels are compiled for in the tests (A100)."""


def available(device: torch.device, dtype: torch.dtype = torch.float32, n: int = 8) -> bool:
    """True where ``triton_stats`` runs for logits of this device and dtype with ``n`` candidates.

    An NVIDIA GPU from sm_80 on, Triton importable, n <= 64. Not float64: the plain form keeps its digits.
    """
    if device.type != "cuda" or torch.version.cuda is None or dtype not in DTYPES or n > MAX_CANDIDATES:
        return False
    return _has_triton() and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
