"""Is it up, and is it well; and the page for Prometheus."""

import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from entrostat.server.answers import Json
from entrostat.server.auth import Tokens, require
from entrostat.server.http_errors import responses
from entrostat.server.metrics import Metrics
from entrostat.server.restart import Overseer
from entrostat.storage.store import Store
from entrostat.wire.tables import PROTOCOL


class Health(BaseModel):
    """The server's state."""

    status: str = Field(description="ok, or failing: nothing can be written (then with status 503).")
    version: str
    protocol: int = Field(description="The wire's version.")
    tokens_needed: bool
    queue_bytes: int = Field(description="Memory of batches not yet written.")
    uptime_s: float = Field(description="Since the process began or last replaced itself.")
    restarts: int = Field(description="How often it has replaced itself.")
    last_restart: str | None = Field(description="Why it did so, the last time.")
    problem: str | None


def package_version() -> str:
    """The installed version of entrostat."""
    try:
        return version("entrostat")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


def router(store: Store, metrics: Metrics, tokens: Tokens, overseer: Overseer) -> APIRouter:
    """The routes of who watches the server."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", response_model=Health, summary="Is it well?")
    def healthz() -> Json:
        """Needs no token."""
        problem = overseer.problem
        document: dict[str, Any] = {
            "status": "failing" if problem else "ok",
            "version": package_version(),
            "protocol": PROTOCOL,
            "tokens_needed": tokens.are_needed,
            "queue_bytes": store.queue_bytes,
            "uptime_s": round(time.monotonic() - overseer.began_s, 3),
            "restarts": overseer.past.count,
            "last_restart": overseer.past.reason,
            "problem": problem,
        }
        return Json(document, status_code=503 if problem else 200)

    @routes.get(
        "/metrics",
        dependencies=[Depends(require("read"))],
        responses=responses() | {200: {"content": {"text/plain": {}}, "description": "Prometheus text format."}},
        summary="For Prometheus",
    )
    def get_metrics() -> Response:
        """The server's health and the main signals of the live runs."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return routes
