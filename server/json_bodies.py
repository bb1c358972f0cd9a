"""JSON bodies of people and producers, read as strictly as batches are (``wire/strict_json.py``)."""

from collections.abc import Callable, Coroutine
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Request, Response
from fastapi.routing import APIRoute

from entrostat.server.http_errors import HttpError
from entrostat.wire import strict_json

_SHORT = 64 * 2**10
"""A longer text is read on a thread: the loop serves others meanwhile."""


class JsonRequest(Request):
    """A request whose ``json()`` refuses what ``strict_json.loads`` does."""

    async def json(self) -> Any:
        """The body's value. Raises HttpError 422."""
        body = await self.body()
        try:
            return strict_json.loads(body) if len(body) < _SHORT else await run_sync(strict_json.loads, body)
        except ValueError as error:
            raise HttpError(422, "invalid_request", f"the body is no JSON that can be taken: {error}") from error


class JsonRoute(APIRoute):
    """A route that reads its body so; every router with bodies has it as its ``route_class``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, with our request."""
        handle = super().get_route_handler()
        is_json_wanted = self.body_field is not None

        async def strict(request: Request) -> Response:
            if is_json_wanted:
                _check_type(request)
            return await handle(JsonRequest(request.scope, request.receive))

        return strict


def _check_type(request: Request) -> None:
    # A page of another site may send any text without asking first, but not JSON.
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if has_body and kind != "application/json" and not kind.endswith("+json"):
        raise HttpError(415, "unknown_type", f"Content-Type is {kind!r}: send application/json")
