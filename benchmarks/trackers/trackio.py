"""trackio, local: a thread writes to SQLite each half second."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trackers.tool import SCALARS, TOKENS, Log, Tool
from trackers.work import NAMES, NUM_TOKENS, SCALAR_NAMES, Block, columns, histograms, is_whole_parquet, write_parquet

PACKAGE = "trackio"


@contextlib.contextmanager
def _run(folder: Path) -> Iterator[Any]:
    os.environ |= {"TRACKIO_DIR": str(folder), "TRACKIO_LOCAL": "1"}
    import trackio as tool

    with contextlib.redirect_stdout(sys.stderr):
        tool.init(project="bench", embed=False)
    yield tool
    with contextlib.redirect_stdout(sys.stderr):
        tool.finish()


def _logging(more: Callable[[Block], dict[str, Any]]) -> Callable[[Path, str], Any]:
    @contextlib.contextmanager
    def start(folder: Path, work: str) -> Iterator[Log]:
        with _run(folder) as tool:

            def log(step: int, scalars: dict[str, float], block: Block) -> None:
                tool.log(scalars | (more(block) if work == "tokens" else {}), step=step)

            yield log

    return start


def _table(block: Block) -> dict[str, Any]:
    import pandas
    import trackio as tool

    return {"tokens": tool.Table(dataframe=pandas.DataFrame(columns(block)))}


def _histograms(block: Block) -> dict[str, Any]:
    import trackio as tool

    return {name: tool.Histogram(np_histogram=made) for name, made in histograms(block).items()}


@contextlib.contextmanager
def artifact(folder: Path, work: str) -> Iterator[Log]:
    """Scalars, and an artifact a step with a Parquet file of the tokens."""
    with _run(folder) as tool:

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            tool.log(scalars, step=step)
            made = tool.Artifact(f"tokens-{step}", type="tokens")
            made.add_file(str(write_parquet(block, folder / "tokens.parquet")))
            tool.log_artifact(made)

        yield log


def _logs(folder: Path) -> list[dict[str, Any]]:
    os.environ |= {"TRACKIO_DIR": str(folder), "TRACKIO_LOCAL": "1"}
    from trackio.sqlite_storage import SQLiteStorage

    return [row for run in SQLiteStorage.get_runs("bench") for row in SQLiteStorage.get_logs("bench", run)]


def left(folder: Path, work: str) -> set[int]:
    """Steps in its database, as its dashboard reads them; with tokens, those whose six histograms are there."""
    names = {SCALAR_NAMES[-1]} | (set(NAMES) if work == "tokens" else set())
    return {row["step"] for row in _logs(folder) if names <= set(row)}


def left_of_table(folder: Path, work: str) -> set[int]:
    """Steps whose row in the database has the table with all its rows."""
    return {row["step"] for row in _logs(folder) if len(row.get("tokens", {}).get("_value", ())) == NUM_TOKENS}


def left_of_artifact(folder: Path, work: str) -> set[int]:
    """Steps with scalars whose artifact can be fetched by name and is whole."""
    steps = left(folder, "scalars")
    import trackio as tool

    found = set()
    with _run(folder):
        for step in steps:
            with contextlib.suppress(ValueError, OSError, KeyError):
                fetched = Path(tool.use_artifact(f"tokens-{step}").download(str(folder / f"back-{step}")))
                if all(is_whole_parquet(path) for path in fetched.rglob("*.parquet")):
                    found.add(step)
    return found


TOOLS = (
    Tool("trackio", _logging(_table), left, SCALARS, PACKAGE),
    Tool("trackio, Table", _logging(_table), left_of_table, TOKENS, PACKAGE, is_slow=True),
    Tool("trackio, Parquet artifact", artifact, left_of_artifact, TOKENS, PACKAGE),
    Tool("trackio, histograms", _logging(_histograms), left, TOKENS, PACKAGE, keeps="64 bins"),
)
