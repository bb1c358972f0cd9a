"""KohakuBoard: shared memory and a queue to a process that writes SQLite."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trackers.tool import SCALARS, TOKENS, Log, Tool
from trackers.work import NAMES, SCALAR_NAMES, Block

PACKAGE = "kohakuboard"


def _logging(more: Callable[[Block], dict[str, Any]]) -> Callable[[Path, str], Any]:
    @contextlib.contextmanager
    def start(folder: Path, work: str) -> Iterator[Log]:
        from kohakuboard.client import Board

        board = Board(name="bench", base_dir=folder)

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            board.step()
            board.log(**scalars, **(more(block) if work == "tokens" else {}))

        yield log
        board.finish()

    return start


def _tensors(block: Block) -> dict[str, Any]:
    from kohakuboard.client import types

    return {name: types.TensorLog(block[name]) for name in NAMES}


def _histograms(block: Block) -> dict[str, Any]:
    from kohakuboard.client import types

    return {name: types.Histogram(block[name], num_bins=64).compute_bins() for name in NAMES}


def _reader(folder: Path) -> Any:
    from kohakuboard.utils.board_reader import BoardReader

    (found,) = folder.rglob("metadata.json")
    return BoardReader(found.parent)


def left(folder: Path, work: str) -> set[int]:
    """Steps that its reader finds; with tokens, those with histograms."""
    reader = _reader(folder)
    steps = set(reader.get_scalar_data(SCALAR_NAMES[-1])["steps"])
    if work == "tokens":
        steps &= {entry["step"] for entry in reader.get_histogram_data(NAMES[-1])}
    return steps


def left_of_tensors(folder: Path, work: str) -> set[int]:
    """Steps with scalars whose last tensor's bytes are all there."""
    reader = _reader(folder)
    entries = reader.get_tensor_data(NAMES[-1])
    return left(folder, "scalars") & {e["step"] for e in entries if len(e["payload"]) >= e["size_bytes"] > 0}


TOOLS = (
    Tool("KohakuBoard", _logging(_tensors), left, SCALARS, PACKAGE),
    Tool("KohakuBoard, TensorLog", _logging(_tensors), left_of_tensors, TOKENS, PACKAGE),
    Tool("KohakuBoard, histograms", _logging(_histograms), left, TOKENS, PACKAGE, keeps="64 bins"),
)
