"""What is refused before any route runs: bodies over the limit, and pages of other sites that talk to this machine."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from entrostat.server.auth import Tokens, is_loopback
from entrostat.server.http_errors import HttpError, answer, note
from entrostat.wire.messages import ErrorBody


class BodyLimit:
    """Refuses a body over a limit: by its declared length before a byte is read, else as soon as it is over.

    Args:
        max_bytes: of every body.
        larger: path -> (limit in its place, the name of its setting), for what is not kept in memory.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, larger: Mapping[str, tuple[int, str]]) -> None:
        self._app, self._max_bytes, self._larger = app, max_bytes, larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes, setting = self._larger.get(scope["path"], (self._max_bytes, "max_body_mb"))
        too_large = f"the body is over {max_bytes} bytes: send less at a time, or raise {setting}"
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > max_bytes:
            body = ErrorBody(error="too_large", message=too_large)
            note(scope, "too_large", too_large)
            # The rest of the body is on its way and will not be read: the connection cannot be used again.
            await answer(413, body, {"Connection": "close"})(scope, receive, send)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > max_bytes:
                raise HttpError(413, "too_large", too_large, {"Connection": "close"})
            return message

        await self._app(scope, counted, send)


class SameSite:
    """Without tokens, lets only this machine's own names through, so that no web page can reach in.

    A page on another site may send requests to 127.0.0.1 from the visitor's browser, and a name that resolves to
    127.0.0.1 makes that page the same origin. Both show in the headers.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and not self._tokens.are_needed:
            headers = dict(scope["headers"])
            host = headers.get(b"host", b"").decode(errors="replace")
            origin = headers.get(b"origin", b"").decode(errors="replace")
            for name in [urlsplit(f"//{host}").hostname] + ([urlsplit(origin).hostname] if origin else []):
                if not is_loopback(name or ""):
                    message = f"without tokens the server answers to this machine's own names only, not to {name!r}"
                    note(scope, "foreign_host", message)
                    await answer(403, ErrorBody(error="foreign_host", message=message))(scope, receive, send)
                    return
        await self._app(scope, receive, send)
