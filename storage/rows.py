"""Batches into tables: the part of a commit that touches rows. Runs inside the writer's transaction."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import duckdb
import numpy as np
import pyarrow as pa

from entrostat.storage import schema
from entrostat.storage.streams import Stream
from entrostat.wire.codec import Tables
from entrostat.wire.tables import TABLES

_MOST_PIECES = 4096
"""Steps that ``in_order`` moves; what has more is left to the engine's sort."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A decoded batch on its way into the database.

    Args:
        seq: its number in the stream.
        num_bytes: size of its body on the wire.
        received: when the server got it, UTC.
    """

    stream: Stream
    seq: int
    tables: Tables
    num_bytes: int
    received: datetime

    @property
    def num_rows(self) -> int:
        """Rows of all tables."""
        return sum(table.num_rows for table in self.tables.values())

    @property
    def num_token_rows(self) -> int:
        """Rows of tokens: nearly all that there are."""
        return self.tables["token"].num_rows if "token" in self.tables else 0

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory while it waits."""
        return self.num_bytes + sum(int(table.nbytes) for table in self.tables.values())


def claim(cursor: duckdb.DuckDBPyConnection, batches: Sequence[Batch]) -> list[Batch]:
    """Write the ledger's rows; returns the batches that were not held before, each once."""
    unique = list({(b.stream.stream_id, b.seq): b for b in reversed(batches)}.values())[::-1]
    spans = [_step_span(b.tables) for b in unique]
    ledger = pa.table(
        {
            "stream_id": pa.array([b.stream.stream_id for b in unique], pa.string()),
            "seq": pa.array([b.seq for b in unique], pa.int32()),
            "run": pa.array([b.stream.run for b in unique], pa.int32()),
            "stream": pa.array([b.stream.stream for b in unique], pa.int32()),
            "received": pa.array([b.received for b in unique], pa.timestamp("us")),
            "num_rows": pa.array([b.num_rows for b in unique], pa.int64()),
            "num_bytes": pa.array([b.num_bytes for b in unique], pa.int64()),
            "first_step": pa.array([span[0] for span in spans], pa.int32()),
            "last_step": pa.array([span[1] for span in spans], pa.int32()),
        }
    )
    cursor.register("_ledger", ledger)
    try:
        new = cursor.execute(
            "insert into raw.batch by name select * from _ledger on conflict do nothing returning stream_id, seq"
        ).fetchall()
    finally:
        cursor.unregister("_ledger")
    held = set(new)
    return [b for b in unique if (b.stream.stream_id, b.seq) in held]


def insert_rows(cursor: duckdb.DuckDBPyConnection, batches: Sequence[Batch], decimals: int | None) -> None:
    """Write all rows of ``batches``, table by table, in the table's order.

    Args:
        decimals: to which the floats of token and sequence rows are rounded; None keeps them as they came. Rounded
            floats take a third less room (``storage.md``). What the views derive signals from is not rounded.
    """
    for wire_name, table in schema.ROW_TABLES.items():
        parts = [_with_keys(b, b.tables[wire_name], table) for b in batches if wire_name in b.tables]
        parts = [part for part in parts if part.num_rows]
        if not parts:
            continue
        rounded = decimals if wire_name in ("token", "sequence") else None
        rows = in_order(parts, table.sort)
        cursor.register("_rows", _in_row_groups(rows))
        try:
            cursor.execute(_insert_sql(wire_name, table, rounded, is_sorted(rows, table.sort)))
        finally:
            cursor.unregister("_rows")


def in_order(parts: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """The rows of all parts, each of one stream and in order by itself, with the steps of the streams interleaved.

    Nothing is sorted: whole steps are put behind each other, which costs a hundredth. Whether the rows are in order
    then, ``is_sorted`` says.
    """
    if len(parts) == 1 or "step" not in keys:
        return pa.concat_tables(parts)
    pieces: list[tuple[list[int], pa.Table]] = []
    for part in parts:
        steps = part["step"].to_numpy()
        starts = np.concatenate(([0], np.flatnonzero(steps[1:] != steps[:-1]) + 1, [part.num_rows])).tolist()
        if len(pieces) + len(starts) > _MOST_PIECES:
            return pa.concat_tables(parts)
        for start, end in itertools.pairwise(starts):
            place = [part[name][start].as_py() for name in ("run", "step", "stream")]
            pieces.append((place, part.slice(start, end - start)))
    return pa.concat_tables(piece for _, piece in sorted(pieces, key=lambda piece: piece[0]))


def _in_row_groups(rows: pa.Table) -> pa.Table:
    """The same in pieces of a row group each, which the engine compresses side by side and does not copy together."""
    if rows.num_rows < schema.ROW_GROUP_ROWS:
        return rows
    return pa.Table.from_batches(rows.combine_chunks().to_batches(max_chunksize=schema.ROW_GROUP_ROWS))


def is_sorted(rows: pa.Table, keys: Sequence[str]) -> bool:
    """Whether the rows are in the order of ``keys``, all integers, as a probe's are: then they need no sorting."""
    if not all(pa.types.is_integer(rows[name].type) for name in keys):
        return False
    if rows.num_rows < 2:
        return True
    is_equal = np.ones(rows.num_rows - 1, np.bool_)
    for name in keys:
        values = rows[name].to_numpy()
        before, after = values[:-1], values[1:]
        if (is_equal & (before > after)).any():
            return False
        is_equal &= before == after
    return True


def _insert_sql(wire_name: str, table: schema.Table, decimals: int | None, is_sorted: bool) -> str:
    kinds = {field.name: field.type for field in TABLES[wire_name]}
    exact = _EXACT.get(wire_name, ())
    picked = [_stored(c.name, kinds.get(c.name), decimals, exact) for c in table.columns]
    # By name: the columns of a migrated file need not be in the order of the schema.
    names = ", ".join(f'"{name}"' for name in table.column_names)
    insert = f"insert into raw.{table.name} ({names}) select {', '.join(picked)} from _rows"
    return insert if is_sorted else f"{insert} order by " + ", ".join(f'"{name}"' for name in table.sort)


_EXACT = {
    # Weights of rows: 1 / prob must stay what the sampler meant, small as it may be.
    "token": ("prob",),
    # The signals of prompts' groups are made from these, and responses are few.
    "sequence": ("mean_logp", "advantage", "reward"),
}


def _stored(name: str, kind: pa.DataType | None, decimals: int | None, exact: Sequence[str]) -> str:
    if decimals is None or name in exact:
        return f'"{name}"'
    if kind == pa.float32():
        return f'round("{name}", {int(decimals)})::float as "{name}"'
    if kind == pa.list_(pa.float32()):
        return f'list_transform("{name}", lambda x: round(x, {int(decimals)})::float) as "{name}"'
    return f'"{name}"'


def _with_keys(batch: Batch, rows: pa.Table, table: schema.Table) -> pa.Table:
    n = rows.num_rows
    keys = {
        "run": lambda: pa.array(np.full(n, batch.stream.run, np.int32)),
        "stream": lambda: pa.array(np.full(n, batch.stream.stream, np.int32)),
        "batch_seq": lambda: pa.array(np.full(n, batch.seq, np.int32)),
        "line": lambda: pa.array(np.arange(n, dtype=np.int32)),
        "received": lambda: pa.array([batch.received], pa.timestamp("us")).take(pa.array(np.zeros(n, np.int32))),
    }
    columns = [keys[name]() if name in keys else rows[name] for name in table.column_names]
    return pa.table(columns, names=list(table.column_names))


def _step_span(tables: Tables) -> tuple[int | None, int | None]:
    """Lowest and highest step of the tables that count steps; events may be of any time."""
    spans = [pa.compute.min_max(t["step"]).as_py() for name, t in tables.items() if name != "event" and t.num_rows]
    spans = [span for span in spans if span["min"] is not None]
    if not spans:
        return None, None
    return min(span["min"] for span in spans), max(span["max"] for span in spans)
