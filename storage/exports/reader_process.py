"""Reads the Parquet files of an export in a process of its own: ``python -m entrostat.storage.exports.reader_process``.

A Parquet file may unpack to more than any machine has, or meet a fault in the library that reads it. Here that ends
this process, which may take only so much memory, and not the server. Standard input is the export's tar; the first
argument says where each table lies in it. Standard output: for each table an Arrow stream of its rows, in pieces.
"""

import json
import os
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from entrostat.storage.exports.layout import TABLES, arrow_schema, check_columns, file_name
from entrostat.wire.errors import MalformedExport

ROWS_A_PIECE = 122_880
MAX_PIECE_BYTES = 256 * 2**20
"""Of so many rows; ours take some 10 MB, more where a run keeps texts."""
REFUSED = 3
"""Exit status: standard error has the reason and the file as JSON."""


class Window:
    """A part of a file, as a file to read."""

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        self._descriptor, self._offset, self._size, self._at = descriptor, offset, size, 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """As files do; all that is left where ``size`` is negative."""
        left = max(0, self._size - self._at)
        data = os.pread(self._descriptor, left if size < 0 else min(size, left), self._offset + self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """As files do."""
        self._at = offset + {0: 0, 1: self._at, 2: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """As files do."""
        return self._at

    def close(self) -> None:
        """The file underneath stays open."""
        self.closed = True


def pieces(descriptor: int, name: str, place: dict[str, Any], sink: Any) -> None:
    """Write one table's rows to ``sink`` as an Arrow stream.

    Args:
        place: ``offset`` and ``bytes`` in the tar, ``rows`` as the manifest says, ``is_older``: of an older schema.

    Raises:
        MalformedExport: the file is not the table's.
    """
    table = TABLES[name]
    wanted = arrow_schema(table)
    try:
        source = pq.ParquetFile(pa.PythonFile(Window(descriptor, place["offset"], place["bytes"]), mode="r"))
        check_columns(table, source.schema_arrow, place["is_older"])
        if source.metadata.num_rows != place["rows"]:
            raise MalformedExport(
                f"has {source.metadata.num_rows} rows, the manifest says {place['rows']}", file_name(table)
            )
        num_rows = 0
        with pa.ipc.new_stream(sink, wanted) as writer:
            for batch in source.iter_batches(batch_size=ROWS_A_PIECE, use_threads=False):
                if batch.nbytes > MAX_PIECE_BYTES:
                    raise MalformedExport(f"{batch.num_rows} of its rows take {batch.nbytes} bytes", file_name(table))
                num_rows += batch.num_rows
                writer.write_batch(completed(batch, wanted))
        if num_rows != place["rows"]:
            raise MalformedExport(f"{num_rows} rows can be read, the manifest says {place['rows']}", file_name(table))
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise MalformedExport(f"cannot be read as Parquet: {reason}", file_name(table)) from error


def completed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """``batch`` with all columns of ``wanted``: what an older export lacks is null."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in wanted
    ]
    return pa.record_batch(columns, schema=wanted)


def main() -> None:
    """Read the tables that the argument names."""
    places = json.loads(sys.argv[1])
    _limit_memory(int(sys.argv[2]))
    try:
        for name, place in places.items():
            pieces(0, name, place, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except MalformedExport as error:
        sys.stderr.write(json.dumps([error.reason, error.file]))
        sys.exit(REFUSED)


def _limit_memory(num_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # not on this system: then only the limits on pieces hold
        return
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


if __name__ == "__main__":
    main()
