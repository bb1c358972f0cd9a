"""What is refused before any route runs: bodies over the limit, and pages of other sites that talk to this machine."""

from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from entrostat.server.auth import Tokens, is_loopback
from entrostat.server.http_errors import HttpError, answer, note
from entrostat.wire.messages import ErrorBody


class BodyLimit:
    """Refuses a body over ``max_bytes``: by its declared length before a byte is read, else as soon as it is over."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            body = ErrorBody(error="too_large", message=self._message)
            note(scope, "too_large", self._message)
            # The rest of the body is on its way and will not be read: the connection cannot be used again.
            await answer(413, body, {"Connection": "close"})(scope, receive, send)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise HttpError(413, "too_large", self._message, {"Connection": "close"})
            return message

        await self._app(scope, counted, send)

    @property
    def _message(self) -> str:
        return f"the body is over {self._max_bytes} bytes: send smaller batches, or raise max_body_mb"


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
