"""Ours: ``capture`` of a micro-batch, ``Recorder.end_step``, spool on disk, no server. It copies ids and mask too."""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from trackers.tool import TOKENS, Log, Tool
from trackers.work import NUM_TOKENS, Block


@contextlib.contextmanager
def all_tokens(folder: Path, work: str, budget: int | None = None) -> Iterator[Log]:
    """``capture`` and ``Recorder.end_step`` into a sender with a spool."""
    import logging
    from datetime import UTC, datetime

    import torch

    from entrostat.probe.capture import Observed, capture
    from entrostat.probe.recorder import Recorder
    from entrostat.wire.messages import StreamOpen
    from entrostat.wire.sender import Sender

    logging.getLogger("entrostat").setLevel(logging.ERROR)  # it says, rightly, that no server is set
    torch.set_num_threads(1)
    opening = StreamOpen(run_id="bench", session_id="0" * 32, started=datetime.now(UTC))
    sender = Sender(opening, url=None, token=None, root=folder)
    recorder, generator = Recorder(sender), torch.Generator()
    tensors: dict[int, Observed] = {}

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        if work == "tokens":
            seen = tensors.get(id(block)) or Observed(**{k: torch.from_numpy(v) for k, v in block.items()})
            tensors[id(block)] = seen
            recorder.add(
                capture(seen, measure=None, measure_all=False, budget=budget, generator=generator, keep=recorder.keep)
            )
        recorder.end_step(step, scalars)

    yield log
    sender.close()
    counts = sender.counters
    if counts.dropped_items or counts.failed_items:
        print(f"lost steps: {counts}", file=sys.stderr)


@contextlib.contextmanager
def rows_4096(folder: Path, work: str) -> Iterator[Log]:
    """The same with the probe's default budget: 4,096 rows of the step are chosen and kept."""
    with all_tokens(folder, work, 4096) as log:
        yield log


def left(folder: Path, work: str, rows: int = NUM_TOKENS) -> set[int]:
    """Steps in the batches that ``entrostat push`` would send."""
    from entrostat.probe.stored_step import restore
    from entrostat.wire.codec import decode
    from entrostat.wire.spool import SpoolStream, pending_streams

    steps: set[int] = set()
    tokens: Counter[int] = Counter()  # of all batches: a large one is split, and tells numbers and tokens apart
    for pending in pending_streams(folder):
        stream = SpoolStream.adopt(pending.path, restore)
        for seq, _ in stream.pending():
            tables = decode(stream.read(seq))
            if "step_metric" in tables:
                steps.update(tables["step_metric"]["step"].to_pylist())
            if "token" in tables:
                tokens.update(tables["token"]["step"].to_pylist())
        stream.release()
    return {step for step in steps if tokens[step] >= rows} if work == "tokens" else steps


def left_of_4096(folder: Path, work: str) -> set[int]:
    """Likewise, with the rows of the budget."""
    return left(folder, work, 4096)


TOOLS = (
    Tool("entrostat", all_tokens, left),
    Tool("entrostat, 4,096 rows", rows_4096, left_of_4096, TOKENS, keeps="4,096 rows"),
)
