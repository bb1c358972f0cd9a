"""Every error of every endpoint has one shape: ``ErrorBody``. The table here says which exception becomes what."""

import logging
from collections.abc import MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from entrostat.storage.errors import Busy, DatabaseBroken, DiskFull, NoRoom, QueryBusy, StorageError
from entrostat.wire.errors import (
    BadParameter,
    Conflict,
    EntrostatError,
    MalformedBatch,
    MalformedExport,
    NotFound,
    QueryError,
    QueryForbidden,
    QueryTimeout,
    TooLarge,
    UnknownVersion,
)
from entrostat.wire.messages import ErrorBody

_log = logging.getLogger(__name__)


class HttpError(HTTPException):
    """An error of the HTTP layer itself: a status, a code and a sentence that says what to change."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        self.code = code
        super().__init__(status, message, headers)


# The first that fits counts: subclasses before their bases.
_STATUS: tuple[tuple[type[EntrostatError], int, str], ...] = (
    (MalformedBatch, 422, "malformed_batch"),
    (MalformedExport, 422, "malformed_export"),
    (TooLarge, 413, "too_large"),
    (UnknownVersion, 426, "unknown_version"),
    (QueryForbidden, 403, "query_forbidden"),
    (QueryTimeout, 408, "query_timeout"),
    (QueryError, 400, "query_error"),
    (BadParameter, 422, "bad_parameter"),
    (NotFound, 404, "not_found"),
    (Conflict, 409, "conflict"),
    (QueryBusy, 503, "query_busy"),
    (DiskFull, 503, "disk_full"),
    (Busy, 503, "busy"),
    (NoRoom, 507, "no_room"),
    (DatabaseBroken, 503, "database_broken"),
    (StorageError, 500, "storage_error"),
)
_CODES = {404: "not_found", 405: "method_not_allowed"}
CODES = tuple(
    sorted(
        {code for _, _, code in _STATUS}
        | {"foreign_host", "internal_error", "invalid_request", "missing_scope", "no_token", "unknown_stream"}
        | {"unknown_token", "unknown_type"}
    )
)
"""Codes of errors that can come of a request that reached one of our routes."""

RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in (
        (401, "The token is missing or unknown."),
        (403, "The token lacks the scope."),
        (422, "The request is malformed; the message names the place."),
    )
}
"""Errors that every endpoint can give, for the OpenAPI document."""


BODY = (
    (408, "The body stopped coming."),
    (413, "The body is over the limit."),
    (415, "The body's type or encoding is not one that is taken here."),
)
"""Errors of every endpoint that takes a body."""


def responses(*statuses: tuple[int, str]) -> dict[int | str, dict[str, Any]]:
    """``RESPONSES`` with an endpoint's own errors."""
    return RESPONSES | {status: {"model": ErrorBody, "description": text} for status, text in statuses}


def install(app: FastAPI) -> None:
    """Make ``app`` answer every error in the one shape."""
    app.add_exception_handler(EntrostatError, _ours)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def answer(status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> Response:
    """An error's response."""
    return Response(body.json_bytes(), status, headers, media_type="application/json")


def note(scope: MutableMapping[str, Any], code: str, message: str) -> None:
    """Let who counts and logs refusals know the error of a request."""
    scope["entrostat_error"], scope["entrostat_reason"] = code, message


async def _ours(request: Request, error: Exception) -> Response:
    status, code = next(((s, c) for kind, s, c in _STATUS if isinstance(error, kind)), (500, "internal_error"))
    if status == 404 and "/v1/streams/" in request.url.path:
        code = "unknown_stream"
    note(request.scope, code, str(error))
    if isinstance(error, MalformedBatch):
        return answer(status, ErrorBody(error=code, message=str(error), table=error.table, column=error.column))
    headers = {"Retry-After": f"{max(1, round(error.retry_after_s))}"} if isinstance(error, Busy) else None
    return answer(status, ErrorBody(error=code, message=str(error)), headers)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    places = "; ".join(_place(problem) for problem in error.errors()[:5])
    note(request.scope, "invalid_request", places)
    return answer(422, ErrorBody(error="invalid_request", message=places))


def _place(problem: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}"


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = error.code if isinstance(error, HttpError) else _CODES.get(error.status_code, f"http_{error.status_code}")
    message = str(error.detail)
    if error.status_code == 404 and not isinstance(error, HttpError):
        message = f"nothing at {request.url.path}: /docs lists what there is"
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
        message = f"{request.method} is not for {request.url.path}: {headers['Allow']} is"
    note(request.scope, code, message)
    return answer(error.status_code, ErrorBody(error=code, message=message), headers)


def _methods(request: Request) -> list[str]:
    """What may be asked of the path: the framework names the methods of the first route that fits, not of all."""
    known: dict[str, Any] = request.app.openapi()["paths"]
    asked = request.url.path.split("/")
    named = known.get(request.url.path)  # /v1/rules/check is a place of its own beside /v1/rules/{name}
    fitting = [named] if named else [methods for path, methods in known.items() if _fits(path.split("/"), asked)]
    found = {method.upper() for methods in fitting for method in methods}
    return sorted(found) or ["GET"]  # /docs, /openapi.json


def _fits(pattern: list[str], asked: list[str]) -> bool:
    return len(pattern) == len(asked) and all(
        part == said or part.startswith("{") for part, said in zip(pattern, asked, strict=True)
    )


async def _unexpected(request: Request, error: Exception) -> Response:
    fields = {"method": request.method, "path": request.url.path}
    _log.error("internal_error", exc_info=error, extra={"fields": fields})
    message = f"the server failed on this request ({type(error).__name__}); its log says more"
    return answer(500, ErrorBody(error="internal_error", message=message))
