"""tensorboardX: a thread writes a file of events. It has no table and no file for tokens, only histograms."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from trackers.tool import SCALARS, TOKENS, Log, Tool
from trackers.work import NAMES, SCALAR_NAMES, Block

PACKAGE = "tensorboardX"


@contextlib.contextmanager
def start(folder: Path, work: str) -> Iterator[Log]:
    """``add_scalar`` and ``add_histogram``."""
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder))

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        for name in NAMES if work == "tokens" else ():
            writer.add_histogram(name, block[name], step, bins=64)

    yield log
    writer.close()


def left(folder: Path, work: str) -> set[int]:
    """Steps that TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    found.Reload()
    tags = found.Tags()
    steps = {event.step for event in found.Scalars(SCALAR_NAMES[-1])} if SCALAR_NAMES[-1] in tags["scalars"] else set()
    if work == "tokens":
        last = NAMES[-1]
        steps &= {event.step for event in found.Histograms(last)} if last in tags["histograms"] else set()
    return steps


TOOLS = (
    Tool("tensorboardX", start, left, SCALARS, PACKAGE),
    Tool("tensorboardX, histograms", start, left, TOKENS, PACKAGE, keeps="64 bins"),
)
