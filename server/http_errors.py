"""Every error of every endpoint has one shape: ``ErrorBody``. The table here says which exception becomes what."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from entrostat.storage.errors import Busy, NoRoom, QueryBusy, StorageError
from entrostat.wire.errors import (
    BadParameter,
    Conflict,
    EntrostatError,
    MalformedBatch,
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
    (TooLarge, 413, "too_large"),
    (UnknownVersion, 426, "unknown_version"),
    (QueryForbidden, 403, "query_forbidden"),
    (QueryTimeout, 408, "query_timeout"),
    (QueryError, 400, "query_error"),
    (BadParameter, 422, "bad_parameter"),
    (NotFound, 404, "not_found"),
    (Conflict, 409, "conflict"),
    (QueryBusy, 503, "query_busy"),
    (Busy, 503, "busy"),
    (NoRoom, 507, "no_room"),
    (StorageError, 500, "storage_error"),
)
_CODES = {404: "not_found", 405: "method_not_allowed"}

RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in (
        (401, "The token is missing or unknown."),
        (403, "The token lacks the scope."),
        (422, "The request is malformed; the message names the place."),
    )
}
"""Errors that every endpoint can give, for the OpenAPI document."""


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


async def _ours(request: Request, error: Exception) -> Response:
    status, code = next(((s, c) for kind, s, c in _STATUS if isinstance(error, kind)), (500, "internal_error"))
    if status == 404 and "/v1/streams/" in request.url.path:
        code = "unknown_stream"
    request.scope["entrostat_error"] = code
    if isinstance(error, MalformedBatch):
        return answer(status, ErrorBody(error=code, message=str(error), table=error.table, column=error.column))
    headers = {"Retry-After": f"{max(1, round(error.retry_after_s))}"} if isinstance(error, Busy) else None
    if status == 500:
        _log.error("%s %s: %s", request.method, request.url.path, error)
    return answer(status, ErrorBody(error=code, message=str(error)), headers)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    places = "; ".join(_place(problem) for problem in error.errors()[:5])
    request.scope["entrostat_error"] = "invalid_request"
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
    request.scope["entrostat_error"] = code
    return answer(error.status_code, ErrorBody(error=code, message=message), dict(error.headers or {}))


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.exception("%s %s", request.method, request.url.path, exc_info=error)
    message = f"the server failed on this request ({type(error).__name__}); its log says more"
    return answer(500, ErrorBody(error="internal_error", message=message))
