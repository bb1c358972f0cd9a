"""A backup in the place of a database that no server has open. What was there is put aside, never deleted."""

from dataclasses import dataclass
from pathlib import Path

import duckdb

from entrostat.storage import files
from entrostat.storage.backups import Contents, look_into, opened
from entrostat.storage.errors import DatabaseHeld, StorageError
from entrostat.storage.integrity import Report, check
from entrostat.wire.errors import NotFound


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did.

    Args:
        put_aside: where the database is that was there; None where there was none.
    """

    contents: Contents
    put_aside: Path | None


def check_file(path: Path) -> Report:
    """``integrity.check`` of a file that no server has open. Nothing is changed in it.

    Raises:
        NotFound: there is no such file.
        StorageError: it cannot be opened.
        DatabaseHeld: a server has it open.
    """
    if not path.is_file():
        raise NotFound(f"no database at {path}")
    with opened(path) as connection:
        return check(connection)


def restore(backup: Path, database: Path) -> Restored:
    """Put a copy of ``backup`` in the place of ``database``.

    Raises:
        NotFound: there is no such backup.
        StorageError: the backup is damaged or of a newer version; nothing was changed.
        DatabaseHeld: a server has the database open.
        NoRoom: the disk has no room for the copy.
    """
    damage = [f for f in check_file(backup).findings if f.is_damage]
    if damage:
        raise StorageError(
            f"{backup} is damaged and was not restored: {damage[0].table}: {damage[0].what} (entrostat check {backup})"
        )
    database.parent.mkdir(parents=True, exist_ok=True)
    _refuse_if_held(database)
    files.refuse_without_room(database.parent, files.size_of(backup), "the restored database")
    aside = None
    with files.written_aside(database) as partial:
        _copied(backup, partial)
        contents = look_into(partial)
        aside = _put_aside(database)
    return Restored(contents, aside)


def _copied(backup: Path, partial: Path) -> None:
    files.copy(backup, partial)
    if (wal := files.wal_of(backup)).exists():  # the file of a killed server is a backup too
        files.copy(wal, files.wal_of(partial))


def _refuse_if_held(database: Path) -> None:
    if not database.exists():
        return
    try:
        with opened(database, read_only=False) as connection:
            connection.execute("checkpoint")  # so that one file is all there is to put aside
    except DatabaseHeld as error:
        raise DatabaseHeld(f"a server has {database} open: stop it, then restore ({error.__cause__})") from error
    except (StorageError, duckdb.Error):  # damaged: that may be why there is something to restore
        return


def _put_aside(database: Path) -> Path | None:
    if not database.exists():
        return None
    aside = database.with_name(f"{database.name}.before-restore-{files.stamp()}")
    if (wal := files.wal_of(database)).exists():
        wal.rename(files.wal_of(aside))
    database.rename(aside)
    return aside
