"""SwanLab, offline: a thread writes a log that ``swanlab sync`` would send. No histograms; tables are ECharts'."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from trackers.tool import SCALARS, TOKENS, Log, Tool
from trackers.work import NAMES, SCALAR_NAMES, Block, listed

PACKAGE = "swanlab"


@contextlib.contextmanager
def start(folder: Path, work: str) -> Iterator[Log]:
    """``log``; the tokens as an ECharts table."""
    import swanlab as tool

    tool.init(project="bench", mode="offline", log_dir=str(folder / "log"))

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        more = {"tokens": tool.echarts.Table().add(list(NAMES), listed(block))} if work == "tokens" else {}
        tool.log(scalars | more, step=step)

    yield log
    tool.finish()


def left(folder: Path, work: str) -> set[int]:
    """Steps in the log, by the reader that its sync uses; with tokens, those whose table's file is there and whole."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    steps: dict[str, set[int]] = {"scalar": set(), "media": set()}
    for path in (folder / "log").rglob("*.swanlab"):
        reader = DataStoreReader()
        reader.open(path)
        for record in map(Record.FromString, reader):
            if record.HasField("scalar") and record.scalar.key == SCALAR_NAMES[-1]:
                steps["scalar"].add(record.scalar.step)
            if record.HasField("media"):
                (item,) = record.media.value.items
                file = path.parent / "media" / "echarts" / item.filename
                if file.exists() and file.stat().st_size == item.size:
                    steps["media"].add(record.media.step)
        reader.close()
    return steps["scalar"] & steps["media"] if work == "tokens" else steps["scalar"]


TOOLS = (
    Tool("swanlab offline", start, left, SCALARS, PACKAGE),
    Tool("swanlab offline, ECharts table", start, left, TOKENS, PACKAGE, is_slow=True),
)
