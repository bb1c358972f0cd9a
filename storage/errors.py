"""What goes wrong in the store, beyond the errors that the wire knows.

::

    EntrostatError
    ├── StorageError          the database cannot be opened, or a write failed (HTTP 500)
    │   ├── DatabaseHeld      another process has the file open
    │   ├── DatabaseBroken    the engine has stopped working and refuses everything (HTTP 503)
    │   └── NoRoom            the disk is too full for what was asked (HTTP 507)
    └── Busy                  nothing is wrong but the load: ask again later (HTTP 503)
        ├── DiskFull          the disk has no room for more
        └── QueryBusy         all slots for people's queries are taken
"""

from entrostat.wire.errors import EntrostatError


class StorageError(EntrostatError):
    """The database cannot be opened, or has stopped working; the message says what to do."""


class DatabaseHeld(StorageError):
    """Another process has the file open."""


class DatabaseBroken(StorageError):
    """The engine has stopped working; only a new start of the server helps."""


class NoRoom(StorageError):
    """The disk has no room for what was asked, and nothing was changed; the message has the numbers."""


class Busy(EntrostatError):
    """The store has as much to do as it may hold.

    Args:
        message: what is full.
        retry_after_s: when to try again.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class DiskFull(Busy):
    """The disk has less room than must stay free, or none."""


class QueryBusy(Busy):
    """As many queries run as may run at once."""
