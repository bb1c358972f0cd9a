"""MLflow with its SQLite store and asynchronous logging of metrics; it has no asynchronous call for files."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trackers.tool import SCALARS, TOKENS, Log, Tool
from trackers.work import SCALAR_NAMES, Block, columns, is_whole_parquet, write_parquet

PACKAGE = "mlflow"


@contextlib.contextmanager
def _run(folder: Path) -> Iterator[Any]:
    logging.disable(logging.WARNING)  # of its database's migrations
    import mlflow as tool

    tool.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    tool.create_experiment("bench", artifact_location=(folder / "artifacts").as_uri())
    tool.set_experiment("bench")
    tool.start_run(run_name="bench")
    yield tool
    tool.end_run()
    tool.flush_async_logging()


@contextlib.contextmanager
def scalars(folder: Path, work: str) -> Iterator[Log]:
    """``log_metrics`` of a step."""
    with _run(folder) as tool:

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            tool.log_metrics(scalars, step=step, synchronous=False)

        yield log


@contextlib.contextmanager
def table(folder: Path, work: str) -> Iterator[Log]:
    """``log_table`` to a file a step: to one file it reads all of it back each time."""
    import pandas

    with _run(folder) as tool:

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            tool.log_metrics(scalars, step=step, synchronous=False)
            tool.log_table(pandas.DataFrame(columns(block)), f"tokens/{step}.parquet")

        yield log


@contextlib.contextmanager
def artifact(folder: Path, work: str) -> Iterator[Log]:
    """``log_artifact`` of a Parquet file a step."""
    with _run(folder) as tool:

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            tool.log_metrics(scalars, step=step, synchronous=False)
            tool.log_artifact(str(write_parquet(block, folder / f"{step}.parquet")), "tokens")

        yield log


def left(folder: Path, work: str) -> set[int]:
    """Steps that its client finds; with tokens, those whose file is listed and whole."""
    logging.disable(logging.WARNING)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("bench").experiment_id])
    steps = {point.step for point in client.get_metric_history(run.info.run_id, SCALAR_NAMES[-1])}
    if work == "tokens":
        files = {Path(file.path) for file in client.list_artifacts(run.info.run_id, "tokens")}
        root = folder / "artifacts" / run.info.run_id / "artifacts"
        steps &= {int(path.stem) for path in files if is_whole_parquet(root / path)}
    return steps


TOOLS = (
    Tool("mlflow, SQLite, async", scalars, left, SCALARS, PACKAGE),
    Tool("mlflow, SQLite, async; log_table", table, left, TOKENS, PACKAGE),
    Tool("mlflow, SQLite, async; Parquet artifact", artifact, left, TOKENS, PACKAGE),
)
