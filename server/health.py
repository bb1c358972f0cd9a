"""Is it up, and is it well; and the page for Prometheus."""

import time
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from entrostat.server.answers import Json
from entrostat.server.auth import Tokens, require, scopes_of
from entrostat.server.control.who import TokenName
from entrostat.server.http_errors import responses
from entrostat.server.metrics import Metrics
from entrostat.server.readiness import Readiness
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


class Ready(BaseModel):
    """Whether a batch could be taken now."""

    ready: bool
    reason: str | None = Field(description="stopping, database_broken, disk_full, write_failed or queue_full.")
    message: str | None


class Whoami(BaseModel):
    """The token that was sent."""

    name: str | None = Field(description="As in the tokens' file; null where the server runs without tokens.")
    scopes: list[str]


def package_version() -> str:
    """The installed version of entrostat."""
    try:
        return version("entrostat")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


def router(store: Store, metrics: Metrics, tokens: Tokens, readiness: Readiness, overseer: Overseer) -> APIRouter:
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

    @routes.get("/v1/whoami", responses=responses(), summary="Whose token is this?")
    def whoami(name: TokenName, scopes: Annotated[frozenset[str], Depends(scopes_of)]) -> Whoami:
        """The name and scopes of the token that was sent; what signing in to the dashboard asks for."""
        return Whoami(name=name, scopes=sorted(scopes))

    @routes.get(
        "/v1/ready",
        response_model=Ready,
        responses={503: {"model": Ready, "description": "Not ready; the reason is in the answer."}},
        summary="Could it take a batch now?",
    )
    async def ready() -> Json:
        """Needs no token. 503 while stopping, and while database, disk or queue would refuse a batch."""
        found = readiness.hindrance()
        document = {
            "ready": found is None,
            "reason": found and found.reason,
            "message": found and found.message,
        }
        return Json(document, status_code=503 if found else 200, headers={"Retry-After": "1"} if found else None)

    @routes.get(
        "/metrics",
        dependencies=[Depends(require("read"))],
        responses=responses() | {200: {"content": {"text/plain": {}}, "description": "Prometheus text format."}},
        summary="For Prometheus",
    )
    def get_metrics() -> Response:
        """The server's health, and of each run when it was last heard, what was lost, and its main signals."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return routes
