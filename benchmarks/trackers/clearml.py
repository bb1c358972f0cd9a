"""ClearML, offline: a thread writes a folder that ``Task.import_offline_session`` would send."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trackers.tool import SCALARS, TOKENS, Log, Tool
from trackers.work import NAMES, NUM_TOKENS, SCALAR_NAMES, Block, columns, histograms

PACKAGE = "clearml"


def _logging(more: Callable[[Any, int, Block], None]) -> Callable[[Path, str], Any]:
    @contextlib.contextmanager
    def start(folder: Path, work: str) -> Iterator[Log]:
        from clearml import Task

        Task.set_offline(True)
        with contextlib.redirect_stdout(sys.stderr):
            task = Task.init("bench", "bench", auto_connect_frameworks=False)
        logger = task.get_logger()

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            for name, value in scalars.items():
                title, series = name.split("/")
                logger.report_scalar(title, series, value, step)
            if work == "tokens":
                more(task, step, block)

        yield log
        with contextlib.redirect_stdout(sys.stderr):
            task.close()

    return start


def _table(task: Any, step: int, block: Block) -> None:
    import pandas

    task.get_logger().report_table("tokens", "tokens", step, table_plot=pandas.DataFrame(columns(block)))


def _artifact(task: Any, step: int, block: Block) -> None:
    import pandas

    task.upload_artifact(f"tokens-{step}", pandas.DataFrame(columns(block)), extension_name=".parquet")


def _histograms(task: Any, step: int, block: Block) -> None:
    for name, (counts, edges) in histograms(block).items():
        task.get_logger().report_histogram("tokens", name, counts, step, xlabels=[f"{edge:g}" for edge in edges[:-1]])


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """What its import would send: its reader sends line by line and gives nothing back."""
    for path in folder.rglob("metrics.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                yield from json.loads(line)


def left(folder: Path, work: str) -> set[int]:
    """Steps in the session's folder."""
    last = SCALAR_NAMES[-1].split("/")[1]
    events = list(_events(folder))
    steps = {event["iter"] for event in events if event.get("variant") == last}
    if work == "tokens":
        steps &= {event["iter"] for event in events if event.get("variant") == NAMES[-1]}
    return steps


def left_of_table(folder: Path, work: str) -> set[int]:
    """Steps with scalars whose table has all its rows."""
    found = set()
    for event in _events(folder):
        if event.get("metric") == "tokens":
            cells = json.loads(event["plot_str"])["data"][0]["cells"]["values"]
            if len(cells[-1]) == NUM_TOKENS:
                found.add(event["iter"])
    return found & left(folder, "scalars")


def left_of_artifact(folder: Path, work: str) -> set[int]:
    """Steps with scalars whose artifact's file is there and whole."""
    from trackers.work import is_whole_parquet

    paths = [path for path in folder.rglob("tokens-*.parquet") if is_whole_parquet(path)]
    return {int(path.stem.removeprefix("tokens-")) for path in paths} & left(folder, "scalars")


TOOLS = (
    Tool("clearml offline", _logging(_table), left, SCALARS, PACKAGE),
    Tool("clearml offline, table", _logging(_table), left_of_table, TOKENS, PACKAGE, is_slow=True),
    Tool("clearml offline, Parquet artifact", _logging(_artifact), left_of_artifact, TOKENS, PACKAGE),
    Tool("clearml offline, histograms", _logging(_histograms), left, TOKENS, PACKAGE, keeps="64 bins"),
)
