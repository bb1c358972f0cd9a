"""neptune-scale, offline: SQLite on the training thread, for ``neptune sync``, whose service is gone."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trackers.tool import SCALARS, TOKENS, Log, Tool
from trackers.work import NAMES, SCALAR_NAMES, Block, histograms, is_whole_parquet, write_parquet

PACKAGE = "neptune-scale"


@contextlib.contextmanager
def _run(folder: Path) -> Iterator[Any]:
    from neptune_scale import Run

    run = Run(project="bench/bench", run_id="bench", mode="offline", log_directory=str(folder))
    yield run
    run.close()


@contextlib.contextmanager
def with_histograms(folder: Path, work: str) -> Iterator[Log]:
    """``log_metrics``; the tokens by ``log_histograms``."""
    from neptune_scale.types import Histogram

    with _run(folder) as run:

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            run.log_metrics(scalars, step=step)
            if work == "tokens":
                made = {name: Histogram(edges, counts=counts) for name, (counts, edges) in histograms(block).items()}
                run.log_histograms(made, step=step)

        yield log


@contextlib.contextmanager
def with_files(folder: Path, work: str) -> Iterator[Log]:
    """``log_metrics`` and, in a series of files, a Parquet file a step."""
    with _run(folder) as run:

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            run.log_metrics(scalars, step=step)
            run.log_files({"tokens": write_parquet(block, folder / "tokens.parquet").read_bytes()}, step=step)

        yield log


def _operations(folder: Path) -> Iterator[Any]:
    """The updates of the run, by the class its sync reads them with."""
    from neptune_scale.sync.operations_repository import OperationsRepository

    (path,) = folder.rglob("run_operations.sqlite3")
    repository, last = OperationsRepository(db_path=path), -1
    while found := repository.get_operations(up_to_bytes=100_000_000, from_exclusive=last):
        for operation in found:
            yield operation.operation
        last = found[-1].sequence_id
    repository.close(cleanup_files=False)


def left(folder: Path, work: str) -> set[int]:
    """Steps in the database; with tokens, those with histograms."""
    scalars: set[int] = set()
    tokens: set[int] = set()
    for operation in _operations(folder):
        if hasattr(operation, "append"):
            step = operation.step.whole
            scalars |= {step} if SCALAR_NAMES[-1] in operation.append else set()
            tokens |= {step} if NAMES[-1] in operation.append else set()
    return scalars & tokens if work == "tokens" else scalars


def left_of_files(folder: Path, work: str) -> set[int]:
    """Steps with scalars whose file is in the series, there and whole."""
    from neptune_scale.sync.operations_repository import OperationsRepository

    (path,) = folder.rglob("run_operations.sqlite3")
    requests = OperationsRepository(db_path=path).get_file_upload_requests(10_000)
    whole = {request.destination for request in requests if is_whole_parquet(Path(request.source_path))}
    found = {
        operation.step.whole
        for operation in _operations(folder)
        if "tokens" in getattr(operation, "append", ()) and operation.append["tokens"].file_ref.path in whole
    }
    return found & left(folder, "scalars")


TOOLS = (
    Tool("neptune-scale offline", with_histograms, left, SCALARS, PACKAGE),
    Tool("neptune-scale offline, series of Parquet files", with_files, left_of_files, TOKENS, PACKAGE),
    Tool("neptune-scale offline, histograms", with_histograms, left, TOKENS, PACKAGE, keeps="64 bins"),
)
