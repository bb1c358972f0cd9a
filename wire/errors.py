"""Every exception of ours.

::

    EntrostatError
    ├── WireError                 something that crosses between processes is not as agreed
    │   ├── MalformedBatch        a body, table, column or value is wrong (HTTP 422; kept aside, never retried)
    │   ├── MalformedExport       the files of an exported run are not what they should be (HTTP 422)
    │   ├── TooLarge              a body or its decompressed form is over the limit (HTTP 413)
    │   └── UnknownVersion        the other side speaks a newer protocol (HTTP 426)
    ├── Refused                   the server said no; carries the status and its own words
    ├── ServerDown                nobody answers at the server's address, or not in our language
    ├── TransferError             an export's files cannot be written or read on this machine
    ├── SpoolError                the spool directory cannot be used, with what to change
    │   └── SpoolBusy             a live process holds the stream's directory
    ├── QueryError                a question cannot be answered as asked (HTTP 400)
    │   ├── QueryForbidden        the statement is not a plain SELECT over the public views (HTTP 403)
    │   └── QueryTimeout          stopped after the time limit (HTTP 408)
    ├── BadParameter              an intervention, a parameter or a rule is not as declared (HTTP 422)
    ├── NotFound                  no such run, stream or signal (HTTP 404)
    ├── Conflict                  the document changed since it was read (HTTP 409)
    └── AttachError               the trainer cannot be attached to, with the version and the way out
"""


class EntrostatError(Exception):
    """The root: whatever we raise on purpose is one of these."""


class WireError(EntrostatError):
    """Something that crosses between processes is not as agreed."""


class MalformedBatch(WireError):
    """A batch that can never be accepted.

    Args:
        reason: what is wrong and what to change, in one sentence.
        table: the table it is in, where that is known.
        column: the column it is in, where that is known.
    """

    def __init__(self, reason: str, table: str | None = None, column: str | None = None) -> None:
        self.reason, self.table, self.column = reason, table, column
        place = f"table {table!r}" if table else ""
        if column:
            place += f", column {column!r}"
        super().__init__(f"{place}: {reason}" if place else reason)


class MalformedExport(WireError):
    """An exported run that cannot be read.

    Args:
        reason: what is wrong, in one sentence.
        file: the file of the export it is in, where that is known.
    """

    def __init__(self, reason: str, file: str | None = None) -> None:
        self.reason, self.file = reason, file
        super().__init__(f"{file or 'the export'}: {reason}")


class TooLarge(WireError):
    """A body, or what it decompresses to, is over the limit."""


class UnknownVersion(WireError):
    """The other side speaks a newer protocol than this one."""


class Refused(EntrostatError):
    """The server refused a request.

    Args:
        status: the HTTP status.
        code: the machine-readable code of the error body, for example ``unknown_stream``.
        message: the server's own words.
        retry_after_s: how long the server asks us to wait, where it said so.
    """

    def __init__(self, status: int, code: str, message: str, retry_after_s: float | None = None) -> None:
        self.status, self.code, self.message, self.retry_after_s = status, code, message, retry_after_s
        super().__init__(f"{status} {code}: {message}")


class ServerDown(EntrostatError):
    """Nobody answers at the server's address, or what answers is not an entrostat server.

    Args:
        url: the address that was asked.
        reason: what happened.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"no entrostat server answers at {url} ({reason}): start one with `entrostat up`, or set ENTROSTAT_URL"
        )


class TransferError(EntrostatError):
    """An export's files cannot be written or read on this machine; the message names the path and what to change."""


class SpoolError(EntrostatError):
    """The spool directory cannot be used; the message names the path and what to change."""


class SpoolBusy(SpoolError):
    """A live process holds the stream's directory."""


class QueryError(EntrostatError):
    """A question that cannot be answered as it was asked."""


class QueryForbidden(QueryError):
    """The statement is not a plain SELECT over the public views."""


class QueryTimeout(QueryError):
    """The statement was stopped after the time limit."""


class BadParameter(EntrostatError):
    """An unknown intervention, or a parameter, bound or rule that is not as declared; the message names it."""


class NotFound(EntrostatError):
    """No such run, stream or signal."""


class Conflict(EntrostatError):
    """The document has changed since the version that the caller read."""


class AttachError(EntrostatError):
    """The trainer cannot be attached to; the message has its version and the way out."""
