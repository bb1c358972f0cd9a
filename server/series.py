"""Curves and histograms, thinned for the window on screen."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from entrostat.server.answers import Json
from entrostat.server.auth import require
from entrostat.server.http_errors import HttpError, responses
from entrostat.server.settings import Settings
from entrostat.storage.store import Store
from entrostat.wire.messages import RunId

Step = Annotated[int | None, Query(ge=0, le=2**31 - 1)]


class Series(BaseModel):
    """One signal of one run. NaN and infinities are null."""

    run: str
    name: str
    step: list[int] = Field(description="First step of each bucket.")
    time: list[float | None] = Field(description="Seconds since 1970.")
    value: list[float | None] = Field(description="Mean over the bucket's steps.")
    low: list[float | None] = Field(description="Lowest value in the bucket.")
    high: list[float | None] = Field(description="Highest value in the bucket.")
    se: list[float | None] | None = Field(description="Standard error, for signals estimated from a sample.")
    bucket_steps: int = Field(description="Steps to a bucket; 1 is full resolution.")


class ManySeries(BaseModel):
    """Several signals of several runs."""

    series: list[Series]


class HistogramOverSteps(BaseModel):
    """Counts by bucket of steps and bin."""

    name: str
    unit: str
    step: list[int] = Field(description="First step of each bucket.")
    bin: list[int]
    low: list[float | None] = Field(description="Lower edge of each bin; null is minus infinity.")
    high: list[float | None] = Field(description="Upper edge of each bin; null is infinity.")
    count: list[list[int]] = Field(description="Tokens: for each step, for each bin.")
    bucket_steps: int


def router(store: Store, settings: Settings) -> APIRouter:
    """The routes of curves."""
    routes = APIRouter(prefix="/v1", tags=["curves"], dependencies=[Depends(require("read"))])

    def bounded(points: int) -> int:
        return min(points, settings.max_points)

    @routes.get(
        "/series", responses=responses((404, "No such run.")), response_model=ManySeries, summary="Signals over steps"
    )
    def get_series(
        run: Annotated[list[RunId], Query(min_length=1, description="Repeat for several.")],
        name: Annotated[list[str], Query(min_length=1, description="A signal; repeat for several.")],
        from_step: Step = None,
        to_step: Step = None,
        points: Annotated[int, Query(ge=1, description="At most so many buckets.")] = 600,
    ) -> Json:
        """Signals of runs, thinned: mean, lowest and highest value of each bucket, so that no spike is hidden."""
        if len(run) * len(name) > settings.max_series:
            raise HttpError(422, "too_many_series", f"runs x names is over {settings.max_series}: ask in parts")
        series: list[dict[str, Any]] = store.series(run, name, from_step, to_step, bounded(points))
        return Json({"series": series})

    @routes.get(
        "/runs/{run}/histogram",
        responses=responses((404, "No such run or histogram.")),
        response_model=HistogramOverSteps,
        summary="A histogram over steps",
    )
    def get_histogram(
        run: RunId,
        name: str = "entropy",
        from_step: Step = None,
        to_step: Step = None,
        points: Annotated[int, Query(ge=1)] = 200,
    ) -> Json:
        """Counts of token values by bin, neighbouring steps added up."""
        return Json(store.histogram(run, name, from_step, to_step, bounded(points)))

    return routes
