"""A run's rows, of one moment, into Parquet files without a name: whatever happens, nothing of them stays on disk."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import duckdb
import pyarrow as pa

from entrostat.storage import schema
from entrostat.storage.errors import NoRoom
from entrostat.storage.exports import parquet_file
from entrostat.storage.exports.layout import ROWS_A_GROUP, TABLES, arrow_schema, file_name
from entrostat.storage.runs import key_of
from entrostat.wire.archive import MANIFEST, FileEntry, Manifest, Member, manifest_bytes, packed, tar_bytes

BYTES_A_ROW = 32
"""Of a token row in Parquet, with all columns, as a guess before it is written."""
KEPT_FREE_BYTES = 256 * 2**20
"""The disk is never filled further than this: the database needs room too."""


class Exported:
    """An export that is ready to be sent; close it, and it is gone.

    Args:
        files: in the order of the manifest's.
    """

    def __init__(self, manifest: Manifest, files: list[BinaryIO]) -> None:
        self.manifest, self._files = manifest, files
        self._head = manifest_bytes(manifest)

    @property
    def num_bytes(self) -> int:
        """Size of the tar."""
        return tar_bytes([len(self._head), *(entry.bytes for entry in self.manifest.files)])

    def tar(self) -> Iterator[bytes]:
        """The tar, in pieces: the manifest first."""
        for file in self._files:
            file.seek(0)
        entries = zip(self.manifest.files, self._files, strict=True)
        members = (Member(entry.name, entry.bytes, file) for entry, file in entries)
        yield from packed([Member(MANIFEST, len(self._head), BytesIO(self._head)), *members])

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()


def nameless_file(folder: Path | None) -> BinaryIO:
    """A temporary file that the system removes when it is closed, or its process killed."""
    return tempfile.TemporaryFile(dir=folder)


def check_room(folder: Path | None, wanted: int) -> None:
    """Raise NoRoom where ``wanted`` bytes more would fill the disk."""
    place = folder or Path(tempfile.gettempdir())
    free = shutil.disk_usage(place).free - KEPT_FREE_BYTES
    if wanted > free:
        raise NoRoom(f"{wanted} bytes are wanted beside the database, {max(0, free)} are free: make room on its disk")


def export(cursor: duckdb.DuckDBPyConnection, run_id: str, folder: Path | None, go_on: Callable[[], None]) -> Exported:
    """Write the files of a run.

    Args:
        cursor: in a read-only transaction, so that all rows are of one moment.
        folder: on whose disk the files lie; None: the system's temporary folder.
        go_on: called before each row group; what it raises ends the export.

    Raises:
        NotFound: no such run.
        NoRoom: the disk is too full for it.
    """
    key = key_of(cursor, run_id)
    moment = datetime.now(UTC)
    num_tokens = cursor.execute("select count(*) from raw.token_row where run = ?", [key]).fetchall()[0][0]
    check_room(folder, num_tokens * BYTES_A_ROW)
    files: list[BinaryIO] = []
    try:
        entries = []
        for table in TABLES.values():
            files.append(nameless_file(folder))
            entries.append(_written(cursor, table, key, files[-1], folder, go_on))
        manifest = Manifest(
            schema_version=schema.SCHEMA_VERSION, entrostat=version("entrostat"), run_id=run_id, exported=moment,
            files=entries,
        )  # fmt: skip
    except BaseException:
        for file in files:
            file.close()
        raise
    return Exported(manifest, files)


def _written(
    cursor: duckdb.DuckDBPyConnection,
    table: schema.Table,
    key: int,
    file: BinaryIO,
    folder: Path | None,
    go_on: Callable[[], None],
) -> FileEntry:
    names = ", ".join(f'"{name}"' for name in table.column_names)

    def groups() -> Iterator[pa.Table]:
        rows = cursor.sql(f"select {names} from raw.{table.name} where run = {int(key)}")
        for batch in rows.to_arrow_reader(ROWS_A_GROUP):
            go_on()
            check_room(folder, batch.nbytes)
            yield pa.Table.from_batches([batch])

    num_rows, written = parquet_file.write(groups(), arrow_schema(table), file)
    file.flush()
    return FileEntry(name=file_name(table), rows=num_rows, bytes=written.num_bytes, sha256=written.sha256)
