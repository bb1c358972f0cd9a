"""What is refused before any route runs: bodies over the limit, who has no token, pages of other sites."""

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from entrostat.server.auth import Tokens, check_known, is_loopback
from entrostat.server.http_errors import HttpError, answer, note
from entrostat.wire.codec import CONTENT_TYPE
from entrostat.wire.messages import ErrorBody


class BodyLimit:
    """Refuses a body over its limit: by its declared length before a byte is read, else as soon as it is over.

    Also one that is encoded (what it would become is not known), and one that stops coming.

    Args:
        max_bytes: of a batch in Arrow; its decoder bounds what it decompresses to.
        max_json_bytes: of all else. Read as JSON, a text takes thirty times its size.
        patience_s: the longest pause within a body.
        larger: path -> (limit in its place, the name of its setting), for what is not kept in memory.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        max_json_bytes: int,
        patience_s: float,
        larger: Mapping[str, tuple[int, str]],
    ) -> None:
        self._app, self._patience_s, self._larger = app, patience_s, larger
        self._of_batch = max_bytes, "max_body_mb"
        self._of_json = min((max_json_bytes, "max_json_mb"), self._of_batch)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        limit, setting = self._limit(scope["path"], headers)
        refused = _refused(headers, limit, setting)
        if refused is not None:
            # The rest of the body is on its way and will not be read: the connection cannot be used again.
            note(scope, refused.code, refused.detail)
            body = ErrorBody(error=refused.code, message=refused.detail)
            await answer(refused.status_code, body, _CLOSE)(scope, receive, send)
            return
        num_bytes, is_whole = 0, False

        async def counted() -> Message:
            nonlocal num_bytes, is_whole
            if is_whole:  # what comes now is only that the client has gone
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._patience_s)
            except TimeoutError as error:
                told = f"nothing more of the body came for {self._patience_s:g} s: send it again"
                raise HttpError(408, "slow_body", told, _CLOSE) from error
            num_bytes += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if num_bytes > limit:
                raise _too_large(limit, setting)
            return message

        await self._app(scope, counted, send)

    def _limit(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str]:
        """Most bytes, and the setting that says so."""
        if path in self._larger:
            return self._larger[path]
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        return self._of_batch if kind == CONTENT_TYPE.encode() else self._of_json


def _refused(headers: dict[bytes, bytes], limit: int, setting: str) -> HttpError | None:
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
        return _too_large(limit, setting)
    encoding = headers.get(b"content-encoding", b"identity").decode(errors="replace").lower()
    if encoding != "identity":
        told = f"Content-Encoding is {encoding[:40]!r}: send the body as it is; batches are compressed inside"
        return HttpError(415, "unknown_encoding", told, _CLOSE)
    return None


def _too_large(limit: int, setting: str) -> HttpError:
    told = f"the body is over {limit} bytes: send less at a time, or raise {setting}"
    return HttpError(413, "too_large", told, _CLOSE)


_CLOSE = {"Connection": "close"}


class KnownToken:
    """With tokens, refuses who has none before a byte of a body is read; what the token may is the route's question."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and self._tokens.are_needed and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            said = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            kind, _, token = said.partition(" ")
            try:
                check_known(self._tokens, token.strip() if kind.lower() == "bearer" else None)
            except HttpError as error:
                note(scope, error.code, error.detail)
                body = ErrorBody(error=error.code, message=error.detail)
                await answer(error.status_code, body, {**(error.headers or {}), **_CLOSE})(scope, receive, send)
                return
        await self._app(scope, receive, send)


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


class SecurityHeaders:
    """Tells browsers that an answer is data: not a page, not a script, not to be kept, not to be framed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        # FastAPI's page of the API takes its script and style from elsewhere: a policy would leave it blank.
        is_page = scope.get("path") in ("/docs", "/redoc", "/docs/oauth2-redirect")
        added = _HEADERS if is_page else (*_HEADERS, _NO_PAGE)

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, told if scope["type"] == "http" else send)


_NO_PAGE = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
