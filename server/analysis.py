"""What can be said of a whole run."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from entrostat.server.answers import Json
from entrostat.server.auth import require
from entrostat.server.http_errors import responses
from entrostat.storage.analysis.floor_forecast import FLOOR
from entrostat.storage.store import Store
from entrostat.wire.messages import RunId

_REFUSED = Field(description="Why there is none, one sentence; null where there is one.")
_EXAMPLE: dict[str, Any] = {
    "run": "my-run",
    "entropy": "entropy_mean",
    "reward": "reward_mean",
    "num_steps": 150,
    "stage": {"stage": "plateau", "plateau_from": 83, "entropy_range": 0.81, "refused": None},
    "entropy_law": {
        "a": 0.42, "b": 1.38, "rmse": 0.021, "ceiling": 0.96, "ceiling_low": 0.94, "ceiling_high": 0.98,
        "num_points": 150, "refused": None,
    },
    "entropy_floor_forecast": {
        "floor": 0.1, "step": None, "step_low": None, "step_high": None, "trend": None,
        "refused": "the entropy does not fall over the last 50 steps",
    },
}  # fmt: skip


class Stage(BaseModel):
    """Whether the entropy still moves (Exchange Fig. 1)."""

    stage: str | None = Field(description="rising or plateau.")
    plateau_from: int | None = Field(description="First step of the plateau that lasts until now.")
    entropy_range: float | None = Field(description="Highest minus lowest entropy since the baseline, in nats.")
    refused: str | None = _REFUSED


class EntropyLaw(BaseModel):
    """Least squares of R = -a exp(H) + b (Entropy Mechanism Eq. 6)."""

    a: float | None
    b: float | None
    rmse: float | None = Field(description="Root of the mean squared residual, in units of the reward.")
    ceiling: float | None = Field(description="R(H = 0) = b - a: the reward when the entropy is used up.")
    ceiling_low: float | None = Field(description="Lower end of its 95 % interval, residuals taken as independent.")
    ceiling_high: float | None = Field(description="Upper end of it.")
    num_points: int = Field(description="Steps with an entropy and a reward.")
    refused: str | None = _REFUSED


class FloorForecast(BaseModel):
    """When the entropy reaches a floor, if it goes on as over the last 50 steps."""

    floor: float = Field(description="In nats.")
    step: int | None
    step_low: int | None = Field(description="Lower end of the 95 % interval of the trend.")
    step_high: int | None = Field(description="Upper end of it.")
    trend: str | None = Field(description="linear or exponential.")
    refused: str | None = _REFUSED


class Analysis(BaseModel):
    """Statements about a run."""

    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})
    run: str
    entropy: str = Field(description="The signal that was taken for H.")
    reward: str = Field(description="The signal that was taken for R.")
    num_steps: int = Field(description="Steps with an entropy.")
    stage: Stage
    entropy_law: EntropyLaw
    entropy_floor_forecast: FloorForecast


def router(store: Store) -> APIRouter:
    """The route of the analysis."""
    routes = APIRouter(prefix="/v1/runs", tags=["curves"], dependencies=[Depends(require("read"))])

    @routes.get(
        "/{run}/analysis",
        responses=responses((404, "No such run.")),
        response_model=Analysis,
        summary="Stage, entropy law, forecast of the floor",
    )
    def get_analysis(
        run: RunId,
        floor: Annotated[float, Query(gt=0, le=100, allow_inf_nan=False, description="In nats.")] = FLOOR,
        reward: Annotated[
            str | None,
            Query(max_length=200, description="The signal for R; by default an evaluated reward, else reward_mean."),
        ] = None,
    ) -> Json:
        """What the run's curves say as a whole; what they cannot say comes with the reason."""
        return Json(store.analysis(run, floor, reward))

    return routes
