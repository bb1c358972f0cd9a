"""Aim: RocksDB on the training thread, or, by an environment variable, on a thread of its own."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trackers.tool import SCALARS, TOKENS, Log, Tool
from trackers.work import NAMES, SCALAR_NAMES, Block, is_whole_parquet, write_parquet

PACKAGE = "aim"
MOST_STEPS = 10_000


@contextlib.contextmanager
def direct(folder: Path, work: str) -> Iterator[Log]:
    """``Run.track``; the tokens as six distributions."""
    import aim as tool

    run = tool.Run(repo=str(folder), experiment="bench")

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        run.track(scalars, step=step)
        if work == "tokens":
            run.track({name: tool.Distribution(block[name].reshape(-1), bin_count=64) for name in NAMES}, step=step)

    yield log
    run.close()


@contextlib.contextmanager
def threaded(folder: Path, work: str) -> Iterator[Log]:
    """The same with its tracking thread."""
    os.environ["__AIM_ENABLE_TRACKING_THREAD__"] = "1"
    with direct(folder, work) as log:
        yield log


@contextlib.contextmanager
def artifact(folder: Path, work: str) -> Iterator[Log]:
    """Its tracking thread, and ``log_artifact`` of a Parquet file a step, which it copies on another."""
    os.environ["__AIM_ENABLE_TRACKING_THREAD__"] = "1"
    import aim as tool

    run = tool.Run(repo=str(folder), experiment="bench")
    run.set_artifacts_uri((folder / "artifacts").as_uri())

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        run.track(scalars, step=step)
        path = write_parquet(block, folder / f"{step}.parquet")
        run.log_artifact(str(path), name=f"{step}.parquet")

    yield log
    run.close()


def _opened(folder: Path) -> Any:
    """The run, read again, after ``aim storage reindex``: without it neither a closed nor a killed run is found."""
    from aim import Repo, Run

    repo = Repo(str(folder))
    (name,) = repo.list_all_runs()
    repo._recreate_index()
    return Run(name, repo=str(folder), read_only=True)


def left(folder: Path, work: str) -> set[int]:
    """Steps of its sequences, as its own objects read them. Those of numbers are hashes of the steps."""
    from aim.storage.context import Context
    from aim.storage.hashing import hash_auto

    run = _opened(folder)
    found = run.get_metric(SCALAR_NAMES[-1], Context({}))
    hashes = set(found.values.sparse_list()[0]) if found else set()
    steps = {step for step in range(MOST_STEPS) if hash_auto(step) in hashes}
    if work == "tokens":
        found = run.get_distribution_sequence(NAMES[-1], Context({}))
        steps &= set(found.values.sparse_list()[0]) if found else set()
    return steps


def left_of_artifact(folder: Path, work: str) -> set[int]:
    """Steps with scalars whose artifact is listed and whole."""
    run = _opened(folder)
    root = Path(run.artifacts_uri.removeprefix("file://"))
    files = {int(Path(name).stem) for name in run.artifacts if is_whole_parquet(root / name)}
    return files & left(folder, "scalars")


TOOLS = (
    Tool("aim", direct, left, SCALARS, PACKAGE),
    Tool("aim, tracking thread", threaded, left, SCALARS, PACKAGE),
    Tool("aim, distributions", direct, left, TOKENS, PACKAGE, keeps="64 bins"),
    Tool("aim, tracking thread, distributions", threaded, left, TOKENS, PACKAGE, keeps="64 bins"),
    Tool("aim, tracking thread, Parquet artifact", artifact, left_of_artifact, TOKENS, PACKAGE),
)
