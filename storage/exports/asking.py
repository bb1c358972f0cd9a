"""SQL over exports where they lie: the same views, over Parquet files in the place of tables. No server, no copy."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from entrostat.storage import schema, streams, views
from entrostat.storage.database import close_the_door
from entrostat.storage.errors import StorageError
from entrostat.storage.exports.checks import check
from entrostat.storage.exports.exporting import check_room
from entrostat.storage.exports.importing import (
    Taken,
    check_named,
    is_named,
    refuse_held_streams,
    take_named,
    with_new_keys,
    write,
    write_named,
)
from entrostat.storage.exports.layout import ROW_TABLES, TABLES, arrow_schema, check_columns, known_entries
from entrostat.storage.exports.reader_process import completed
from entrostat.storage.query import QueryPool
from entrostat.storage.running_query import Answer
from entrostat.storage.schema import SERVER_STREAM
from entrostat.wire.archive import CHUNK_BYTES, FileEntry, Manifest, checked_copy, verified
from entrostat.wire.errors import MalformedExport
from entrostat.wire.transfer import folder_manifest

NO_TIMEOUT_S = 24 * 3600.0
"""A question to one's own files may take its time."""


class ExportedRuns:
    """The runs of some exports as one database. Close it, or use it as a context manager.

    A tar is unpacked beside the system's temporary files first; a folder is read where it is. Each file is held to its
    hash before the first question.

    Args:
        paths: folders or tars that ``entrostat runs export`` wrote.
        memory_limit_mb: most memory the engine may take, in MiB.
        num_threads: threads of the engine; None for one a core.

    Raises:
        MalformedExport: one is damaged, or is none.
        UnknownVersion: one is of a newer entrostat.
        Conflict: two are of the same run.
    """

    def __init__(self, paths: Sequence[Path], memory_limit_mb: int = 4096, num_threads: int | None = None) -> None:
        self.renamed: dict[Path, str] = {}
        """Exports whose run's name was taken by one before -> its name here."""
        with contextlib.ExitStack() as held:
            folders = [_folder(path, held) for path in paths]
            self._connection = held.enter_context(_connect(folders))
            for table in schema.ALL_TABLES:
                if table.name not in ROW_TABLES:
                    self._connection.execute(schema.ddl(table)[0])
            self._connection.executemany("insert into raw.bin values (?, ?, ?)", schema.bin_rows())
            self._parts: dict[str, list[str]] = {name: [] for name in ROW_TABLES}
            for path, folder in zip(paths, folders, strict=True):
                self._add(path, folder)
            self._make_views()
            close_the_door(self._connection, memory_limit_mb, num_threads, 2**20)
            self._queries = QueryPool(self, timeout_s=NO_TIMEOUT_S, max_result_bytes=2**40)
            held.callback(self._queries.close)
            self._held = held.pop_all()

    def query(self, sql: str, max_rows: int) -> Answer:
        """As ``Store.query``, without its limits on time and bytes."""
        return self._queries.run(sql, max_rows)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """For ``QueryPool``."""
        return self._connection.cursor()

    def noting_failure(self) -> contextlib.AbstractContextManager[None]:
        """For ``QueryPool``: nobody else asks here."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Let go of the files; what was unpacked is removed."""
        self._held.close()

    def __enter__(self) -> "ExportedRuns":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, path: Path, folder: Path) -> None:
        """One export: its small tables into memory, its row tables as parts of the views to be."""
        manifest = folder_manifest(folder)
        is_older = manifest.schema_version < schema.SCHEMA_VERSION
        entries, taken = known_entries(manifest), Taken()
        for entry in entries.values():
            _check_file(folder, entry, is_older)
        for table in filter(is_named, TABLES.values()):
            if table.name in entries:
                take_named(table, _rows(folder, entries, table), manifest.run_id, taken, self._reserve)
        check_named(taken)
        refuse_held_streams(self._connection, taken.stream_ids)
        run_id = streams.free_run_id(self._connection, manifest.run_id)
        if run_id != manifest.run_id:
            self.renamed[path] = run_id
        write_named(self._connection, taken, run_id)
        for name, table in TABLES.items():
            if name in ROW_TABLES:
                if name in entries:
                    self._parts[name].append(_select(table, folder / entries[name].name, taken))
            elif not is_named(table) and name in entries:
                for rows in _rows(folder, entries, table):
                    check(table, rows)
                    write(self._connection, table, with_new_keys(table, rows, taken))

    def _reserve(self, num_streams: int) -> tuple[int, int]:
        return streams.reserve(self._connection, streams.Reserved(), num_streams)

    def _make_views(self) -> None:
        for name, parts in self._parts.items():
            empty = ", ".join(f'null::{c.kind} as "{c.name}"' for c in TABLES[name].columns)
            body = " union all ".join(parts) if parts else f"select {empty} where false"
            self._connection.execute(f"create view raw.{name} as {body}")
        for statement in views.statements():
            self._connection.execute(statement)


def _folder(path: Path, held: contextlib.ExitStack) -> Path:
    if path.is_dir():
        return path
    if not path.is_file():
        raise MalformedExport(f"there is no {path}")
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="entrostat-")))
    check_room(folder, path.stat().st_size)
    with path.open("rb") as tar:
        _unpack(tar.read, folder)
    return folder


def _unpack(read: Callable[[int], bytes], folder: Path) -> Manifest:
    with contextlib.ExitStack() as files:
        return verified(read, lambda name: files.enter_context((folder / name).open("wb")).write)


def _check_file(folder: Path, entry: FileEntry, is_older: bool) -> None:
    path = folder / entry.name
    if not path.is_file() or path.stat().st_size != entry.bytes:
        raise MalformedExport(f"is not there with the {entry.bytes} bytes of the manifest", entry.name)
    with path.open("rb") as file:
        checked_copy(file.read, entry, lambda _: None)
    try:
        with pq.ParquetFile(path) as source:
            check_columns(TABLES[entry.table], source.schema_arrow, is_older)
            num_rows = source.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise MalformedExport(f"cannot be read as Parquet: {error}", entry.name) from error
    if num_rows != entry.rows:
        raise MalformedExport(f"has {num_rows} rows, the manifest says {entry.rows}", entry.name)


def _rows(folder: Path, entries: dict[str, FileEntry], table: schema.Table) -> Iterator[pa.Table]:
    if table.name not in entries:
        return
    with pq.ParquetFile(folder / entries[table.name].name) as source:
        for batch in source.iter_batches(batch_size=CHUNK_BYTES // 16, use_threads=False):
            yield pa.Table.from_batches([completed(batch, arrow_schema(table))])


def _select(table: schema.Table, path: Path, taken: Taken) -> str:
    """The rows of a file under the keys that they have here."""
    with pq.ParquetFile(path) as source:
        there = set(source.schema_arrow.names)
    new = {old: key for old, (key, _) in taken.streams.items()}
    cases = " ".join(f"when {old} then {key}" for old, key in new.items())
    is_same = all(old == key for old, key in new.items())
    keys = {
        "run": f"{taken.run}::integer",
        "stream": "stream" if is_same else f"(case stream {cases} else {SERVER_STREAM} end)::integer",
    }
    picked = [
        f'{keys.get(c.name) or (_quoted(c.name) if c.name in there else "null")}::{c.kind} as "{c.name}"'
        for c in table.columns
    ]
    return f"select {', '.join(picked)} from read_parquet({schema.quoted(str(path.resolve()))})"


def _quoted(name: str) -> str:
    return f'"{name}"'


@contextlib.contextmanager
def _connect(folders: Sequence[Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that may read the files of these folders, and after ``close_the_door`` nothing else."""
    connection = duckdb.connect(
        ":memory:", config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    )
    try:
        connection.execute("create schema raw")
        paths = [str(f.resolve() / (name + ".parquet")) for f in folders for name in ROW_TABLES]
        connection.execute(f"set allowed_paths = [{', '.join(schema.quoted(path) for path in paths)}]")
        yield connection
    except duckdb.Error as error:
        raise StorageError(f"the exports cannot be opened: {error}") from error
    finally:
        connection.close()
