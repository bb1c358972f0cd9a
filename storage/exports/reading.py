"""An export that somebody sent: its tar held to the manifest, its rows read by a process that may fail."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pyarrow as pa

from entrostat.storage import schema
from entrostat.storage.exports.layout import TABLES, arrow_schema, known_entries
from entrostat.storage.exports.reader_process import REFUSED
from entrostat.wire.archive import FileEntry, verified
from entrostat.wire.errors import MalformedExport

READER_BYTES = 1024 * 2**20
"""Memory of the process that reads the Parquet files."""
STOPS_WITHIN_S = 10.0
"""A reading process that has failed is gone by then."""


class Received:
    """An export in one tar, checked down to the hashes of its files; the rows are read later.

    Args:
        file: the tar, on a disk; stays open as long as this is used.

    Raises:
        MalformedExport: it is not an export, or is damaged.
        UnknownVersion: of a newer entrostat.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._offsets: dict[str, int] = {}
        file.seek(0)
        self.manifest = verified(file.read, self._place)
        self._entries = known_entries(self.manifest)
        self.is_older = self.manifest.schema_version < schema.SCHEMA_VERSION

    def _place(self, name: str) -> Callable[[bytes], object]:
        self._offsets[name] = self._file.tell()
        return lambda _: None

    def entry(self, table: str) -> FileEntry | None:
        """What the manifest says of a table; None where an older export lacks it."""
        return self._entries.get(table)

    @contextlib.contextmanager
    def rows(self) -> Iterator["Iterator[tuple[schema.Table, Iterator[pa.Table]]]"]:
        """(table, its rows in pieces), in the order of ``layout.TABLES``; each is to be read to its end.

        Raises:
            MalformedExport: a file is not as it should be; only then, while the pieces are read.
        """
        found = {name: self._entries[name] for name in TABLES if name in self._entries}
        places = {
            name: {
                "offset": self._offsets[entry.name],
                "bytes": entry.bytes,
                "rows": entry.rows,
                "is_older": self.is_older,
            }
            for name, entry in found.items()
        }
        with tempfile.TemporaryFile() as problems, _reader(json.dumps(places), self._file, problems) as reader:
            assert reader.stdout is not None
            stdout = pa.PythonFile(reader.stdout, mode="r")

            def tables() -> Iterator[tuple[schema.Table, Iterator[pa.Table]]]:
                for name, entry in found.items():
                    yield TABLES[name], _pieces(entry, stdout, reader, problems)

            yield tables()


@contextlib.contextmanager
def _reader(places: str, file: BinaryIO, problems: BinaryIO) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-P", "-m", "entrostat.storage.exports.reader_process", places, str(READER_BYTES)]
    # The system's allocator asks for memory as it is needed, so that the limit counts what is used.
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdin=file, stdout=subprocess.PIPE, stderr=problems, env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _pieces(
    entry: FileEntry, stdout: pa.PythonFile, reader: "subprocess.Popen[bytes]", problems: BinaryIO
) -> Iterator[pa.Table]:
    wanted, num_rows = arrow_schema(TABLES[entry.table]), 0
    try:
        stream = pa.ipc.open_stream(stdout)
        if not stream.schema.equals(wanted):
            raise MalformedExport("is not read as the table it is", entry.name)
        for batch in stream:
            num_rows += batch.num_rows
            yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError) as error:
        raise _why(entry, reader, problems) from error
    if num_rows != entry.rows:  # the stream of a reader that gives up has an end all the same
        raise _why(entry, reader, problems)


def _why(entry: FileEntry, reader: "subprocess.Popen[bytes]", problems: BinaryIO) -> MalformedExport:
    """Why the reading process stopped."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        reader.wait(STOPS_WITHIN_S)
    problems.seek(0)
    said = problems.read(4000).decode(errors="replace")
    with contextlib.suppress(ValueError):
        if reader.returncode == REFUSED:
            return MalformedExport(*json.loads(said))
    return MalformedExport(
        f"what reads it stopped (status {reader.returncode}): it unpacks to more than {READER_BYTES} bytes at a time, "
        "or is made to do harm",
        entry.name,
    )
