"""Signing in with a token of the server, and out again. What a visitor may do is what their own token may."""

import math
import time
from urllib.parse import quote

from flask import Flask, Response, g, has_request_context, redirect, render_template_string, request

from entrostat.dashboard.sessions import Attempts, Sessions, Visitor
from entrostat.wire.client import Client
from entrostat.wire.errors import EntrostatError, Refused

COOKIE = "entrostat_session"
_OPEN = ("/login", "/assets/")
_ASK_EVERY_S = 5.0
"""A server without tokens may be started anew with some; until this is seen it refuses by itself."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>entrostat</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/assets/style.css"></head>
<body><main class="empty"><h1>entrostat</h1>
<form method="post" action="/login" class="bar">
<input type="hidden" name="next" value="{{ next }}">
<label class="control">token
<input type="password" name="token" autocomplete="current-password" autofocus required></label>
<button class="button primary">sign in</button></form>
{% if said %}<div class="banner" role="alert">{{ said }}</div>{% endif %}
<p class="quiet">A token of the server with scope read; with control too you may act on runs.
Made by <code>entrostat token add NAME --scope read --tokens FILE</code>.</p></main></body></html>
"""

_AGAIN = '<!doctype html><meta http-equiv="refresh" content="0; url=/login?next={{ goal }}"><title>entrostat</title>'


def visitor() -> Visitor | None:
    """Who asks, where somebody is signed in."""
    found: Visitor | None = g.get("visitor") if has_request_context() else None
    return found


def visitors_token() -> str | None:
    """The token of who asks: a ``Client`` sends it."""
    found = visitor()
    return found.token if found else None


class Login:
    """The pages for signing in and out, and the door before all others.

    Args:
        client: of the server, without a token.
        is_needed: always ask; else only where the server says that it wants tokens.
        is_https: visitors come over https: their browser never sends the cookie over anything else.
    """

    def __init__(self, client: Client, sessions: Sessions, is_needed: bool, is_https: bool = False) -> None:
        self._client, self._sessions = client, sessions
        self._is_needed, self._is_https = is_needed, is_https
        self._attempts = Attempts()
        self._ask_after = 0.0

    def install(self, server: Flask) -> None:
        """Add the routes, and let nobody else by who is not signed in."""
        server.add_url_rule("/login", "login", self._asked, methods=["GET"])
        server.add_url_rule("/login", "login_sent", self._sent, methods=["POST"])
        server.add_url_rule("/logout", "logout", self._out, methods=["POST"])
        server.before_request(self._door)

    def _door(self) -> Response | None:
        g.visitor = self._sessions.visitor(request.cookies.get(COOKIE))
        is_open = request.path.startswith(_OPEN) or g.visitor is not None
        if is_open or not self._wants_tokens():
            return None
        if request.method == "GET" and not request.path.startswith("/_"):  # Dash's own questions begin so
            here = request.full_path.rstrip("?")
            return redirect(f"/login?next={quote(here, safe='')}", 303)  # type: ignore[return-value]  # werkzeug's base
        return Response("sign in first: /login", 401, mimetype="text/plain")

    def _wants_tokens(self) -> bool:
        if not self._is_needed and time.monotonic() >= self._ask_after:
            self._ask_after = time.monotonic() + _ASK_EVERY_S
            try:
                self._is_needed = bool(self._client.health()["tokens_needed"])
            except (EntrostatError, KeyError):
                return False  # the page says that the server is away; without a token nothing can be done there
        return self._is_needed

    def _asked(self) -> Response:
        if g.visitor is not None or not self._wants_tokens():
            return redirect(local(request.args.get("next")), 303)  # type: ignore[return-value]  # werkzeug's base
        goal = local(request.args.get("next"))
        if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
            # Who follows a link from elsewhere comes without their cookie; asked from here, the browser sends it.
            return Response(render_template_string(_AGAIN, goal=quote(goal, safe="")))
        return self._page("", goal)

    def _sent(self) -> Response:
        goal, address = local(request.form.get("next")), request.remote_addr or ""
        if (wait_s := self._attempts.wait_s(address)) > 0:
            answer = self._page(f"Too many wrong tokens from here: wait {math.ceil(wait_s)} s.", goal, 429)
            answer.headers["Retry-After"] = str(math.ceil(wait_s))
            return answer
        found = self._checked(request.form.get("token", "").strip())
        if isinstance(found, str):
            self._attempts.failed(address)
            return self._page(found, goal, 403)
        answer = Response(status=303, headers={"Location": goal})
        answer.set_cookie(
            COOKIE, self._sessions.begin(found), max_age=int(self._sessions.lasts_s), httponly=True, samesite="Strict",
            secure=self._is_https or request.is_secure, path="/",
        )  # fmt: skip
        return answer

    def _out(self) -> Response:
        self._sessions.end(request.cookies.get(COOKIE))
        answer = Response(status=303, headers={"Location": "/login"})
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="Strict", secure=self._is_https)
        return answer

    def _checked(self, token: str) -> Visitor | str:
        """Who the server says the token is of; else why nobody can sign in with it."""
        try:
            with Client(self._client.address, token, timeout_s=10.0) as own:
                said = own.whoami()
        except ValueError:
            return "This is no token of the server."
        except Refused as error:
            is_unknown = error.code in ("no_token", "unknown_token")
            return "This is no token of the server." if is_unknown else f"The server refused: {error.message}"
        except EntrostatError:
            return f"The server at {self._client.url} does not answer."
        if said["name"] is None:
            return (
                "The server runs without tokens, so this dashboard lets nobody in from other machines: make a token "
                "(entrostat token add NAME --scope read --tokens FILE) and start the server with --tokens FILE."
            )
        scopes = frozenset(said["scopes"])
        if not scopes & {"read", "admin"}:
            return f"This token may {', '.join(sorted(scopes))}; to look at runs it needs the scope read."
        return Visitor(token, str(said["name"]), scopes)

    def _page(self, said: str, goal: str, status: int = 200) -> Response:
        return Response(render_template_string(_PAGE, said=said, next=goal), status)


def local(goal: str | None) -> str:
    """``goal`` where it is a page of ours, else the first page: a link must not send people elsewhere."""
    is_ours = bool(goal) and goal is not None and goal.startswith("/") and not goal.startswith(("//", "/\\", "/login"))
    return goal if is_ours and goal is not None and goal.isprintable() and goal.isascii() else "/"
