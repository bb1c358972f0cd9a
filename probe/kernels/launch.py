"""What a launch of a kernel needs."""

import contextlib
from contextlib import AbstractContextManager

import torch


def launched_on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, whatever its arguments' device is."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def power_of_two(count: int) -> int:
    """The next one, 1 or more."""
    return 1 << max(0, count - 1).bit_length()
