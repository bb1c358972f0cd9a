"""Runs: list, look, tag, delete; their events and what should be on in them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from entrostat.server.answers import Json
from entrostat.server.auth import require
from entrostat.server.control.who import Asker
from entrostat.server.http_errors import BODY, responses
from entrostat.server.json_bodies import JsonRoute
from entrostat.storage.store import Store
from entrostat.wire.messages import DesiredState, RunId

_NO_RUN = responses((404, "No such run."))
_READ = [Depends(require("read"))]


class RunChange(BaseModel):
    """What a person may change of a run; what is left out stays."""

    model_config = ConfigDict(extra="forbid")
    tags: dict[str, str] | None = Field(default=None, description="Replace all tags.")
    notes: str | None = Field(default=None, max_length=100_000, description="Replace the notes.")


class RunSummary(BaseModel):
    """A run in a list."""

    run: str
    created: str = Field(description="ISO 8601, UTC.")
    last_seen: str | None = Field(description="When its last batch came, ISO 8601, UTC.")
    status: str = Field(description="live, ended or silent.")
    trainer: str
    tags: dict[str, str]
    notes: str
    host: str
    git_commit: str | None
    world_size: int
    last_step: int | None
    latest: dict[str, float | None] = Field(description="Signal -> its newest value.")
    tokens_removed: str | None = Field(description="When token or sequence rows of it were last removed, ISO 8601.")


class Runs(BaseModel):
    """Runs, newest first."""

    runs: list[RunSummary]


class Removed(BaseModel):
    """Rows of a run that were there and were removed: a gap, not nothing measured."""

    what: str = Field(description="Table: token, sequence, ...")
    num_rows: int
    from_step: int | None
    to_step: int | None
    removed: str = Field(description="ISO 8601, UTC.")
    reason: str


class RunDetail(RunSummary):
    """A run's page."""

    config: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    streams: list[dict[str, Any]]
    baseline: dict[str, Any] | None = Field(description="Threshold and rate of d_collapse, once they are fixed.")
    names: list[str] = Field(description="Every signal it has.")
    removed: list[Removed] = Field(description="What retention has removed of it.")


class Events(BaseModel):
    """Events, oldest first."""

    events: list[dict[str, Any]]


def router(store: Store) -> APIRouter:
    """The routes of runs."""
    routes = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=JsonRoute)

    @routes.get("", dependencies=_READ, responses=responses(), response_model=Runs, summary="List runs")
    def list_runs(
        search: Annotated[str | None, Query(description="Part of a name, tag or note.", max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Json:
        """Runs, newest first."""
        return Json({"runs": store.runs(search, limit)})

    @routes.get("/{run}", dependencies=_READ, responses=_NO_RUN, response_model=RunDetail, summary="One run")
    def get_run(run: RunId) -> Json:
        """Everything about a run that is not a curve."""
        return Json(store.run(run))

    @routes.patch(
        "/{run}",
        dependencies=[Depends(require("control"))],
        responses=responses(*BODY, (404, "No such run.")),
        response_model=RunDetail,
        summary="Tag a run, write notes",
    )
    def change_run(run: RunId, change: RunChange, asker: Asker) -> Json:
        """Replace tags or notes; the answer is the run as it is now."""
        store.update_run(run, change.tags, change.notes, asker)
        return Json(store.run(run))

    @routes.delete(
        "/{run}",
        dependencies=[Depends(require("admin"))],
        responses=_NO_RUN,
        status_code=204,
        summary="Delete a run",
    )
    def delete_run(run: RunId, asker: Asker) -> None:
        """Remove a run and every row of it, for good; that it was, and by whom, stays in the view ``audit``."""
        store.delete_run(run, asker)

    @routes.get("/{run}/desired", dependencies=_READ, responses=_NO_RUN, summary="What should be on in a run")
    def get_desired(run: RunId) -> DesiredState:
        """The newest desired state; version 0 where nothing was ever asked for."""
        return store.desired_of(run)

    @routes.get(
        "/{run}/events", dependencies=_READ, responses=_NO_RUN, response_model=Events, summary="What happened in a run"
    )
    def get_events(run: RunId, limit: Annotated[int, Query(ge=1, le=10_000)] = 500) -> Json:
        """The newest events, oldest first."""
        return Json({"events": store.events(run, limit)})

    return routes
