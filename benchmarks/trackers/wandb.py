"""Weights & Biases, offline: its service process writes a log that ``wandb sync`` would send."""

import contextlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trackers.tool import SCALARS, TOKENS, Log, Tool
from trackers.work import (
    NAMES,
    NUM_TOKENS,
    SCALAR_NAMES,
    Block,
    histograms,
    is_whole_parquet,
    listed,
    write_parquet,
)

PACKAGE = "wandb"


@contextlib.contextmanager
def _run(folder: Path) -> Iterator[Any]:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
    import wandb as tool

    run = tool.init(project="bench", dir=str(folder))
    yield run
    run.finish()


def _logging(more: Callable[[Block], dict[str, Any]]) -> Callable[[Path, str], Any]:
    @contextlib.contextmanager
    def start(folder: Path, work: str) -> Iterator[Log]:
        with _run(folder) as run:

            def log(step: int, scalars: dict[str, float], block: Block) -> None:
                run.log(scalars | (more(block) if work == "tokens" else {}), step=step)

            yield log

    return start


def _table(block: Block) -> dict[str, Any]:
    import wandb as tool

    tool.Table.MAX_ROWS = tool.Table.MAX_ARTIFACT_ROWS = NUM_TOKENS  # else it keeps 10,000 and says nothing
    return {"tokens": tool.Table(columns=list(NAMES), data=listed(block))}


def _histograms(block: Block) -> dict[str, Any]:
    import wandb as tool

    return {name: tool.Histogram(np_histogram=made) for name, made in histograms(block).items()}


@contextlib.contextmanager
def artifact(folder: Path, work: str) -> Iterator[Log]:
    """Scalars, and an artifact a step with a Parquet file of the tokens."""
    with _run(folder) as run:
        import wandb as tool

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            run.log(scalars, step=step)
            made = tool.Artifact(f"tokens-{step}", type="tokens")
            made.add_file(str(write_parquet(block, folder / "tokens.parquet")))
            run.log_artifact(made)

        yield log


def _logged(folder: Path) -> Iterator[Any]:
    """The records of its log. It ships no reader for Python: ``wandb sync`` wants its server."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in folder.rglob("*.wandb"):
        yield from (Record.FromString(data) for data in _records(path.read_bytes()))


def _history(folder: Path) -> dict[int, dict[tuple[str, ...], str]]:
    """A step -> its values as JSON, by their path of names."""
    steps: dict[int, dict[tuple[str, ...], str]] = {}
    for record in _logged(folder):
        if record.WhichOneof("record_type") == "history":
            items = {tuple(item.nested_key or [item.key]): item.value_json for item in record.history.item}
            steps[record.history.step.num] = items
    return steps


def left(folder: Path, work: str) -> set[int]:
    """Steps in the history of its log; with tokens, those with the histograms' counts."""
    wanted = {(SCALAR_NAMES[-1],)} | ({(name, "values") for name in NAMES} if work == "tokens" else set())
    return {step for step, items in _history(folder).items() if wanted <= set(items)}


def left_of_table(folder: Path, work: str) -> set[int]:
    """Steps with scalars whose table's file is there and whole."""
    steps = left(folder, "scalars")
    (files,) = folder.glob("wandb/offline-run-*/files")
    for step, items in _history(folder).items():
        try:
            path = files / json.loads(items["tokens", "path"])
            is_whole = len(json.loads(path.read_text())["data"]) == NUM_TOKENS
        except (KeyError, OSError, json.JSONDecodeError):
            is_whole = False
        if not is_whole:
            steps.discard(step)
    return steps


def left_of_artifact(folder: Path, work: str) -> set[int]:
    """Steps with scalars whose artifact is recorded and whose file is there and whole."""
    found: set[int] = set()
    for record in _logged(folder):
        kind = record.WhichOneof("record_type")
        made = record.request.log_artifact.artifact if kind == "request" else record.artifact
        files = [Path(entry.local_path) for entry in made.manifest.contents]
        if made.name.startswith("tokens-") and files and all(map(is_whole_parquet, files)):
            found.add(int(made.name.removeprefix("tokens-")))
    return found & left(folder, "scalars")


def _records(data: bytes) -> Iterator[bytes]:
    """Records in blocks of 32 KiB, each piece with checksum, size and kind."""
    at, pieces = 7, b""  # after the file's own header
    while at + 7 <= len(data):
        size, kind = struct.unpack_from("<HB", data, at + 4)
        in_block = at % 32768
        if in_block > 32768 - 7 or kind == 0:  # padding up to the next block
            at += 32768 - in_block
            continue
        if at + 7 + size > len(data):
            return
        pieces += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield pieces
            pieces = b""


TOOLS = (
    Tool("wandb offline", _logging(_histograms), left, SCALARS, PACKAGE),
    Tool("wandb offline, Table", _logging(_table), left_of_table, TOKENS, PACKAGE, is_slow=True),
    Tool("wandb offline, Parquet artifact", artifact, left_of_artifact, TOKENS, PACKAGE),
    Tool("wandb offline, histograms", _logging(_histograms), left, TOKENS, PACKAGE, keeps="64 bins"),
)
