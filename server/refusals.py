"""What was refused, and what persons changed: counted, and said in the log."""

import logging
import re
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from entrostat.server.metrics import Metrics
from entrostat.wire.logs import event

_log = logging.getLogger(__name__)

_HEALTH = {"/healthz", "/v1/ready"}
"""Their 503 is an answer, not a refusal."""
_OF_BATCH = re.compile(r"/v1/streams/(?P<stream>[0-9a-f]{32})(?:/batches/(?P<seq>[0-9]{1,10}))?$")
_CHANGES = {"PUT", "POST", "PATCH", "DELETE"}
_NO_CHANGE = re.compile(r"/v1/(streams/|sql$|rules/check$|runs/[^/]+/rules/replay$)")
_BY_HAND = re.compile(r"/v1/runs/[^/]+/(interventions/|proposals/|stop-all$|arm$)")
"""Logged by ``control/changes.py``, which knows the person."""


class RefusalCounter:
    """Counts refused requests by the code of their error, and logs them; and changes that a client made.

    What the handlers of errors and the routes know is in the scope: ``entrostat_error`` and ``entrostat_reason``,
    ``entrostat_run``, ``entrostat_who``.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] in _HEALTH:
            await self._app(scope, receive, send)
            return

        async def seen(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answered(scope, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, seen)
        except Exception:  # only counted here: its answer is made outside of us
            self._metrics.refused("internal_error")
            raise

    def _answered(self, scope: Scope, status: int) -> None:
        if status >= 400:
            code = scope.get("entrostat_error", f"http_{status}")
            self._metrics.refused(code)
            _tell_of_refusal(scope, status, code)
        elif scope["method"] in _CHANGES and not _NO_CHANGE.match(scope["path"]) and not _BY_HAND.match(scope["path"]):
            event(_log, logging.INFO, "control", action=scope["method"], status=status, **_asked(scope))


def _tell_of_refusal(scope: Scope, status: int, code: str) -> None:
    reason = scope.get("entrostat_reason")
    of_batch = _OF_BATCH.match(scope["path"])
    if status == 401 or code in ("missing_scope", "foreign_host"):
        event(_log, logging.WARNING, "auth_refused", code=code, status=status, method=scope["method"], **_asked(scope))
    elif of_batch:
        event(
            _log, logging.WARNING, "batch_refused", code=code, status=status, run=scope.get("entrostat_run"),
            stream=of_batch["stream"], seq=of_batch["seq"], message=reason,
        )  # fmt: skip
    else:
        level = logging.WARNING if status >= 500 else logging.INFO
        event(_log, level, "request_refused", code=code, status=status, method=scope["method"], **_asked(scope))


def _asked(scope: Scope) -> dict[str, Any]:
    """Where it came from and what it was about; never its query, headers or body."""
    client = scope.get("client")
    return {"path": scope["path"], "by": scope.get("entrostat_who"), "client": client[0] if client else None}
