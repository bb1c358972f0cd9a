"""Rows into a Parquet file, a row group at a time, hashed on the way.

How a column is encoded was measured (``benchmarks/export_run.py --encodings``): a dictionary for what repeats, which
floats rounded to 4 decimals do; byte-stream-split for floats that do not (a server that keeps them whole); deltas for
the keys, by which rows are sorted.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

KEYS = frozenset({"run", "stream", "batch_seq", "line", "step", "seq", "pos", "bin", "cell"})
"""Sorted or constant integers."""
REPEATS_AT_LEAST = 4
"""Floats whose values come so often on average get a dictionary."""
COMPRESSION, LEVEL = "zstd", 3


class HashedFile:
    """What is written goes to ``file``; its size and SHA-256 are known at the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self.num_bytes = 0
        self.closed = False

    @property
    def sha256(self) -> str:
        """Of what was written, in hexadecimal digits."""
        return self._digest.hexdigest()

    def write(self, data: Any) -> int:
        """All of ``data``."""
        piece = bytes(data)
        self._file.write(piece)
        self._digest.update(piece)
        self.num_bytes += len(piece)
        return len(piece)

    def flush(self) -> None:
        """As files have it."""
        self._file.flush()

    def tell(self) -> int:
        """As files have it."""
        return self.num_bytes

    def close(self) -> None:
        """The file itself stays open: it is read next."""
        self.closed = True


def write(groups: Iterable[pa.Table], schema: pa.Schema, file: BinaryIO) -> tuple[int, HashedFile]:
    """A Parquet file of ``groups``, each a row group; returns the number of rows, and what was written.

    Args:
        schema: of the file; the groups are cast to it.
    """
    hashed, num_rows = HashedFile(file), 0
    writer: pq.ParquetWriter | None = None
    for group in groups:
        rows = group.cast(schema)
        writer = writer or _writer(hashed, schema, rows)
        writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        num_rows += rows.num_rows
    (writer or _writer(hashed, schema, schema.empty_table())).close()
    return num_rows, hashed


def _writer(hashed: HashedFile, schema: pa.Schema, first: pa.Table) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        pa.PythonFile(hashed, mode="w"), schema, compression=COMPRESSION, compression_level=LEVEL, **encodings(first)
    )


def encodings(rows: pa.Table) -> dict[str, Any]:
    """How the columns are written, by what the first rows look like: arguments of ``ParquetWriter``."""
    with_dictionary: list[str] = []
    column_encoding: dict[str, str] = {}
    for field in rows.schema:
        is_list = pa.types.is_list(field.type)
        leaf = f"{field.name}.list.element" if is_list else field.name
        kind = field.type.value_type if is_list else field.type
        if field.name in KEYS:
            column_encoding[leaf] = "DELTA_BINARY_PACKED"
        elif pa.types.is_floating(kind) and not _repeats(rows[field.name], is_list):
            column_encoding[leaf] = "BYTE_STREAM_SPLIT"
        elif not pa.types.is_boolean(kind):
            with_dictionary.append(leaf)
    return {"use_dictionary": with_dictionary, "column_encoding": column_encoding}


def _repeats(column: pa.ChunkedArray, is_list: bool) -> bool:
    values = pc.list_flatten(column) if is_list else column
    return bool(pc.count_distinct(values, mode="all").as_py() * REPEATS_AT_LEAST <= len(values))
