"""``Store.transfers``: runs out of the database as files, and back."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import duckdb

from entrostat.storage import desired, streams
from entrostat.storage.database import Database
from entrostat.storage.errors import Busy, StorageError
from entrostat.storage.exports import exporting, importing
from entrostat.storage.exports.exporting import Exported
from entrostat.storage.exports.reading import Received
from entrostat.storage.streams import Reserved, Stream
from entrostat.storage.writer import Writer
from entrostat.wire.errors import MalformedExport
from entrostat.wire.messages import DesiredState


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import took in.

    Args:
        num_rows: by table.
    """

    run_id: str
    num_streams: int
    num_rows: dict[str, int]


Remember = Callable[[str, list[Stream], DesiredState | None], None]
"""Told of an imported run: its name, its streams, its desired state where it has one."""


class Transfers:
    """All methods may be called from any thread.

    Args:
        reserved: keys that no stream may be given any more.
        remember: called on the writer's thread, before anyone can send to the run's streams.
    """

    def __init__(self, database: Database, writer: Writer, reserved: Reserved, remember: Remember) -> None:
        self._database, self._writer, self._reserved, self._remember = database, writer, reserved, remember
        self._changed = threading.Condition()
        self._num_active, self._is_closing = 0, False

    @property
    def folder(self) -> Path | None:
        """Where files lie while a run is on its way: beside the database. None: where the system puts them."""
        return None if self._database.path == ":memory:" else Path(self._database.path).parent

    def temporary_file(self) -> BinaryIO:
        """A file without a name, for an export that arrives."""
        return exporting.nameless_file(self.folder)

    def check_room(self, wanted: int) -> None:
        """Raise NoRoom where ``wanted`` bytes more would fill the disk."""
        exporting.check_room(self.folder, wanted)

    def export(self, run_id: str) -> Exported:
        """The files of a run, as it is now; ingest goes on meanwhile.

        Raises:
            NotFound: no such run.
            NoRoom: the disk is too full for it.
        """
        with self._active(), self._database.reading() as cursor:
            return exporting.export(cursor, run_id, self.folder, self._go_on)

    def import_(self, file: BinaryIO, name: str | None = None) -> Imported:
        """Take in the run of a tar, whole or not at all.

        Args:
            name: as which it is to be known; None: its own, or ``name-2`` where that is taken.

        Raises:
            MalformedExport, UnknownVersion: it cannot be read.
            Conflict: it is held here already, or ``name`` is taken.
            Busy, StorageError: the database could not; nothing of it is there.
        """
        with self._active():
            received, taken = Received(file), importing.Taken()
            cursor = self._database.cursor()
            try:
                cursor.execute("begin")
                importing.insert(cursor, received, taken, self._reserve, self._go_on)
                return self._writer.do(lambda seen: self._finish(cursor, seen, taken, name))
            except duckdb.ConstraintException as error:
                self._refuse_held(taken)
                raise MalformedExport(f"a batch is in it twice: {error}") from error
            except duckdb.OutOfMemoryException as error:
                raise Busy(f"the server is out of memory: {error}", retry_after_s=30.0) from error
            except duckdb.Error as error:
                raise StorageError(f"the run could not be stored: {error}") from error
            finally:
                cursor.close()  # what is not committed is rolled back

    def _refuse_held(self, taken: importing.Taken) -> None:
        with self._database.reading() as seen:
            importing.refuse_held_streams(seen, taken.stream_ids)

    def close(self) -> None:
        """End what is under way, and wait until it has."""
        with self._changed:
            self._is_closing = True
            self._changed.wait_for(lambda: not self._num_active)

    def _finish(
        self,
        cursor: duckdb.DuckDBPyConnection,
        seen: duckdb.DuckDBPyConnection,
        taken: importing.Taken,
        name: str | None,
    ) -> Imported:
        run_id = importing.finish(cursor, seen, taken, name)
        with self._database.reading() as reader:
            self._writer.know_baseline(taken.run, reader)
            known = [Stream(key, stream_id, taken.run, run_id) for key, stream_id in taken.streams.values()]
            for stream in known:
                self._writer.remember(stream)
            self._remember(run_id, known, desired.latest(reader).get(run_id))
        return Imported(run_id, len(known), taken.num_rows)

    def _reserve(self, num_streams: int) -> tuple[int, int]:
        return self._writer.do(lambda cursor: streams.reserve(cursor, self._reserved, num_streams))

    def _go_on(self) -> None:
        if self._is_closing:
            raise StorageError("the store is closing")

    @contextmanager
    def _active(self) -> Iterator[None]:
        with self._changed:
            self._go_on()
            self._num_active += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_active -= 1
                self._changed.notify_all()
