"""SQL for people: one SELECT over the public views; and what there is to ask for."""

import logging
from typing import Annotated, Any, Literal

import pyarrow as pa
from fastapi import APIRouter, Body, Depends
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from entrostat.server.answers import Json
from entrostat.server.auth import require
from entrostat.server.http_errors import BODY, responses
from entrostat.server.json_bodies import JsonRoute
from entrostat.server.metrics import Metrics
from entrostat.server.settings import Settings
from entrostat.storage.running_query import Answer
from entrostat.storage.store import Store
from entrostat.wire.errors import QueryTimeout
from entrostat.wire.logs import event
from entrostat.wire.messages import Whole
from entrostat.wire.signals import SIGNALS

_log = logging.getLogger(__name__)

ARROW_STREAM = "application/vnd.apache.arrow.stream"
_EXAMPLE = {"sql": "select step, entropy_mean, d_collapse from step where run = 'my-run' order by step"}


class Question(BaseModel):
    """A statement and the form of its answer."""

    model_config = ConfigDict(extra="forbid")
    sql: str = Field(description="One SELECT over the views of GET /v1/schema.")
    format: Literal["json", "arrow"] = "json"
    max_rows: Whole = Field(default=10_000, ge=1, description="The answer is cut here, and says so.")


class Rows(BaseModel):
    """The answer as JSON."""

    columns: list[dict[str, str]] = Field(description="name and type of each column.")
    rows: list[list[Any]]
    truncated: bool
    elapsed_ms: float


class ColumnMeaning(BaseModel):
    """A column of a view."""

    name: str
    type: str
    comment: str


class ViewMeaning(BaseModel):
    """A view."""

    name: str
    comment: str
    columns: list[ColumnMeaning]


class Schema(BaseModel):
    """The views."""

    views: list[ViewMeaning]


class SignalMeaning(BaseModel):
    """A signal of the vocabulary."""

    name: str
    unit: str
    meaning: str
    merge: str
    source: str
    needs: list[str]
    better: str
    shape: str


class Vocabulary(BaseModel):
    """The signals."""

    signals: list[SignalMeaning]


def router(store: Store, settings: Settings, metrics: Metrics) -> APIRouter:
    """The routes of questions."""
    routes = APIRouter(prefix="/v1", tags=["questions"], dependencies=[Depends(require("read"))], route_class=JsonRoute)

    @routes.post(
        "/sql",
        summary="Ask in SQL",
        responses=responses(
            *BODY,
            (400, "The statement cannot be parsed or computed; the engine's own words."),
            (403, "Not a SELECT over the public views."),
            (408, "Stopped after the time limit."),
            (503, "As many queries run as may."),
        )
        | {200: {"model": Rows, "content": {ARROW_STREAM: {}}, "description": "Rows, as JSON or as an Arrow stream."}},
    )
    def ask(question: Annotated[Question, Body(openapi_examples={"a curve": {"value": _EXAMPLE}})]) -> Response:
        """Run a SELECT. The result is cut at ``max_rows`` and at the server's limits, and says so."""
        try:
            with metrics.query():
                answer = store.query(question.sql, min(question.max_rows, settings.max_rows))
        except QueryTimeout:
            event(_log, logging.WARNING, "query_stopped", duration_s=settings.query_timeout_s)
            raise
        if answer.seconds > settings.slow_query_s:
            event(_log, logging.INFO, "query_slow", duration_s=round(answer.seconds, 3), rows=answer.table.num_rows)
        return _as_arrow(answer) if question.format == "arrow" else _as_json(answer)

    @routes.get("/schema", responses=responses(), response_model=Schema, summary="Views and their columns")
    def get_schema() -> Json:
        """Every view and column with its meaning."""
        return Json({"views": store.schema()})

    @routes.get("/signals", responses=responses(), response_model=Vocabulary, summary="The vocabulary")
    def get_signals() -> Json:
        """Every signal: unit, meaning, how it adds up, where it comes from."""
        names = ("name", "unit", "meaning", "merge", "source", "needs", "better", "shape")
        return Json({"signals": [{name: getattr(signal, name) for name in names} for signal in SIGNALS]})

    return routes


def _as_json(answer: Answer) -> Json:
    columns = [column.to_pylist() for column in answer.table.columns]
    return Json(
        {
            "columns": [{"name": field.name, "type": str(field.type)} for field in answer.table.schema],
            "rows": list(zip(*columns, strict=True)),
            "truncated": answer.is_truncated,
            "elapsed_ms": round(answer.seconds * 1000, 3),
        }
    )


def _as_arrow(answer: Answer) -> Response:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, answer.table.schema) as writer:
        writer.write_table(answer.table)
    headers = {
        "X-Truncated": "true" if answer.is_truncated else "false",
        "X-Elapsed-Ms": f"{answer.seconds * 1000:.3f}",
    }
    return Response(bytes(sink.getvalue()), headers=headers, media_type=ARROW_STREAM)
