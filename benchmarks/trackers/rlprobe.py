"""rlprobe: a queue to a thread that writes Parquet files."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from trackers.tool import SCALARS, Log, Tool
from trackers.work import SCALAR_NAMES, Block

PACKAGE = "rlprobe"


@contextlib.contextmanager
def start(folder: Path, work: str) -> Iterator[Log]:
    """``Recorder.log_step``."""
    from rlprobe.recorder import Recorder

    recorder = Recorder(folder / "run")

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        recorder.log_step(step, **scalars)

    yield log
    recorder.close()


def left(folder: Path, work: str) -> set[int]:
    """Steps that its reader finds."""
    from rlprobe.storage import RunReader

    try:
        steps = RunReader(folder / "run").steps()
    except FileNotFoundError:
        return set()
    return {step.step for step in steps if SCALAR_NAMES[-1] in step.extra}


TOOLS = (Tool("rlprobe", start, left, SCALARS, PACKAGE, no_tokens="keeps numbers of steps and samples"),)
