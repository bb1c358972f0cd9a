"""Floors: what the bytes cost when nobody does anything for the user with them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trackers.tool import Log, Tool
from trackers.work import NAMES, SCALAR_NAMES, Block, blocks, columns, is_whole_parquet, write_parquet


@contextlib.contextmanager
def memcpy(folder: Path, work: str) -> Iterator[Log]:
    """The block's bytes copied to fresh memory."""
    kept: list[Any] = []

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        kept.append((dict(scalars), [value.copy() for value in block.values()] if work == "tokens" else None))

    yield log


@contextlib.contextmanager
def append(folder: Path, work: str) -> Iterator[Log]:
    """The block's bytes appended to a file."""
    with open(folder / "raw", "ab", buffering=0) as file:

        def log(step: int, scalars: dict[str, float], block: Block) -> None:
            file.write(np.array([step, *scalars.values()]).tobytes())
            if work == "tokens":
                file.write(b"".join(value.tobytes() for value in block.values()))

        yield log


def left_of_append(folder: Path, work: str) -> set[int]:
    """Whole records in the file."""
    record = 8 * (1 + len(SCALAR_NAMES))
    if work == "tokens":
        record += sum(value.nbytes for value in blocks()[0].values())
    return set(range((folder / "raw").stat().st_size // record))


@contextlib.contextmanager
def rewrite(folder: Path, work: str) -> Iterator[Log]:
    """The block's bytes written to the pages that a file has already."""
    files = [os.open(folder / f"raw{k}", os.O_RDWR | os.O_CREAT) for k in range(4)]

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        numbers = np.array([step, *scalars.values()])
        os.pwritev(files[step % len(files)], [numbers, *(block.values() if work == "tokens" else ())], 0)

    yield log
    for file in files:
        os.close(file)


@contextlib.contextmanager
def parquet(folder: Path, work: str) -> Iterator[Log]:
    """A Parquet file a step for the scalars, and one for the tokens."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        if work == "tokens":
            write_parquet(block, folder / f"tokens-{step}.parquet")
        pq.write_table(pa.table({name: [value] for name, value in scalars.items()}), folder / f"{step}.parquet")

    yield log


def left_of_parquet(folder: Path, work: str) -> set[int]:
    """Steps whose files can be read."""
    import pyarrow.parquet as pq

    steps = set()
    for path in folder.glob("[0-9]*.parquet"):
        if work == "tokens" and not is_whole_parquet(folder / f"tokens-{path.stem}.parquet"):
            continue
        if pq.read_table(path).num_rows == 1:
            steps.add(int(path.stem))
    return steps


@contextlib.contextmanager
def duckdb(folder: Path, work: str) -> Iterator[Log]:
    """An INSERT and a COMMIT a step."""
    import duckdb as tool
    import pyarrow as pa

    database = tool.connect(str(folder / "floor.duckdb"))
    database.execute("create table scalar (step bigint, name varchar, value double)")
    database.execute(f"create table token (step bigint, {', '.join(f'{name} float' for name in NAMES)})")

    def log(step: int, scalars: dict[str, float], block: Block) -> None:
        database.begin()
        database.register("given", pa.table({"name": list(scalars), "value": list(scalars.values())}))
        database.execute("insert into scalar select ?, name, value from given", [step])
        if work == "tokens":
            database.register("given", pa.table(columns(block)))
            database.execute("insert into token select ?, * from given", [step])
        database.commit()

    yield log
    database.close()


def left_of_duckdb(folder: Path, work: str) -> set[int]:
    """Steps that a query finds."""
    import duckdb as tool

    with tool.connect(str(folder / "floor.duckdb")) as database:
        return {row[0] for row in database.execute(f"select distinct step from {work[:-1]}").fetchall()}


TOOLS = (
    Tool("floor: memcpy", memcpy),
    Tool("floor: append to a file", append, left_of_append),
    Tool("floor: files used again", rewrite),
    Tool("floor: a Parquet file a step", parquet, left_of_parquet),
    Tool("floor: a DuckDB INSERT a step", duckdb, left_of_duckdb),
)
