"""rlwatch: SQLite on the training thread, with a commit a step, and its detectors."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from trackers.tool import SCALARS, Log, Tool
from trackers.work import SCALAR_NAMES, Block

PACKAGE = "rlwatch"
NAMED = ("entropy", "kl_divergence", "reward_mean", "reward_std", "advantage_std", "loss", "grad_norm")


@contextlib.contextmanager
def start(folder: Path, work: str) -> Iterator[Log]:
    """``log_step``: seven numbers by the names that its detectors watch, the others as extra ones."""
    import rlwatch as tool

    (folder / "rlwatch.yaml").write_text(f"storage:\n  log_dir: {folder / 'log'}\n")
    monitor = tool.attach(str(folder / "rlwatch.yaml"), framework="manual", run_id="bench")
    names = (*NAMED, *SCALAR_NAMES[len(NAMED) :])

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        monitor.log_step(step, **dict(zip(names, scalars.values(), strict=True)))

    yield log
    monitor.stop()


def left(folder: Path, work: str) -> set[int]:
    """Steps in its database."""
    from rlwatch.storage import open_store

    rows = open_store(str(folder / "log")).execute("select step, extra_json from metrics")
    return {row["step"] for row in rows if SCALAR_NAMES[-1] in row["extra_json"]}


TOOLS = (Tool("rlwatch", start, left, SCALARS, PACKAGE, no_tokens="takes numbers only"),)
