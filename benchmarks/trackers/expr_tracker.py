"""expr-tracker: lines of JSON, buffered and written by a thread."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trackers.tool import SCALARS, TOKENS, Log, Tool
from trackers.work import NAMES, NUM_TOKENS, SCALAR_NAMES, Block, columns, is_whole_parquet, write_parquet

PACKAGE = "expr-tracker"


@contextlib.contextmanager
def _run(folder: Path) -> Iterator[Any]:
    import expr_tracker as tool

    tool.init(project="bench", name="run", dir=str(folder), backends=["jsonl"])
    yield tool
    tool.finish()


@contextlib.contextmanager
def arrays(folder: Path, work: str) -> Iterator[Log]:
    """``log``; the tokens as six lists."""
    with _run(folder) as tool:

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            tool.log(scalars | (columns(block) if work == "tokens" else {}), step=step, commit=True)

        yield log


@contextlib.contextmanager
def artifact(folder: Path, work: str) -> Iterator[Log]:
    """``log`` and a Parquet artifact a step."""
    with _run(folder) as tool:

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            tool.log(scalars, step=step, commit=True)
            tool.log_artifact(str(write_parquet(block, folder / "tokens.parquet")), name=f"tokens-{step}")

        yield log


def left(folder: Path, work: str) -> set[int]:
    """Steps that its reader of finished runs gives; with tokens, those with all values."""
    from expr_tracker.history.reader import read_history

    steps = set()
    for row in read_history(folder / "bench" / "run", None):
        if SCALAR_NAMES[-1] in row and (work == "scalars" or len(row.get(NAMES[-1], ())) == NUM_TOKENS):
            steps.add(int(row["_step"]))
    return steps


def left_of_artifact(folder: Path, work: str) -> set[int]:
    """Steps with scalars whose artifact a later run resolves, and whose file is whole."""
    steps = left(folder, "scalars")
    import expr_tracker as tool

    found = set()
    tool.init(project="bench", name="after", dir=str(folder), backends=["jsonl"])
    for step in steps:
        with contextlib.suppress(ValueError, OSError, KeyError, LookupError):
            fetched = Path(tool.use_artifact(f"tokens-{step}").download())
            paths = list(fetched.rglob("*.parquet"))
            if paths and all(map(is_whole_parquet, paths)):
                found.add(step)
    tool.finish()
    return found


TOOLS = (
    Tool("expr-tracker", arrays, left, SCALARS, PACKAGE),
    Tool("expr-tracker, lists", arrays, left, TOKENS, PACKAGE, is_slow=True),
    Tool("expr-tracker, Parquet artifact", artifact, left_of_artifact, TOKENS, PACKAGE),
)
