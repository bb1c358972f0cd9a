"""Streams and batches in. An acknowledgement goes out only after COMMIT."""

import asyncio
import logging
from typing import Annotated

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Depends, Path, Request

from entrostat.server.auth import require
from entrostat.server.http_errors import BODY, HttpError, responses
from entrostat.server.json_bodies import JsonRoute
from entrostat.server.settings import Settings
from entrostat.storage.store import Store
from entrostat.wire.codec import CONTENT_TYPE, Tables, decode, decode_json
from entrostat.wire.errors import UnknownVersion
from entrostat.wire.logs import event
from entrostat.wire.messages import Ack, StreamId, StreamOpen, StreamOpened
from entrostat.wire.tables import PROTOCOL

_log = logging.getLogger(__name__)

MAX_SEQ = 2**31 - 1

_JSON_EXAMPLE = {"step_metric": [{"step": 3, "name": "trainer/loss", "value": 0.5}]}
_OPEN_EXAMPLE = {
    "run_id": "my-run",
    "session_id": "0" * 31 + "1",
    "started": "2026-11-21T12:00:00Z",
    "trainer": "my own loop",
    "tags": {"model": "small"},
}
_BATCH_BODY = {
    "requestBody": {
        "required": True,
        "description": "zstd over Arrow IPC streams (wire/codec.py), or JSON: table -> list of rows.",
        "content": {
            "application/json": {"schema": {"type": "object"}, "example": _JSON_EXAMPLE},
            CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


def router(store: Store, settings: Settings) -> APIRouter:
    """The routes of producers."""
    routes = APIRouter(
        prefix="/v1/streams", tags=["ingest"], dependencies=[Depends(require("ingest"))], route_class=JsonRoute
    )
    decoding = anyio.CapacityLimiter(settings.max_decoding)
    max_bytes = settings.max_decompressed_mb * 2**20

    @routes.put(
        "/{stream_id}",
        responses=responses(*BODY, (426, "The producer speaks a newer protocol.")),
        summary="Open a stream",
    )
    def open_stream(
        stream_id: Annotated[StreamId, Path(description="32 hexadecimal digits, drawn when the producer starts.")],
        opening: Annotated[StreamOpen, Body(openapi_examples={"a run": {"value": _OPEN_EXAMPLE}})],
    ) -> StreamOpened:
        """Say who sends. Repeating it is harmless; the answer names the run, which may be ``name-2``."""
        if opening.protocol > PROTOCOL:
            raise UnknownVersion(
                f"the producer speaks protocol {opening.protocol}, this server {PROTOCOL}: update the server"
            )
        opened = store.open_stream(stream_id, opening)
        event(
            _log, logging.INFO, "stream_opened", run=opened.run_id, stream=stream_id, producer=opening.producer,
            rank=opening.rank, host=opening.host, resume_step=opening.resume_step,
        )  # fmt: skip
        return opened

    @routes.post(
        "/{stream_id}/batches/{seq}",
        openapi_extra=_BATCH_BODY,
        summary="Send a batch",
        responses=responses(
            *BODY,
            (404, "The stream was never opened here: open it, then send again."),
            (413, "Over the limit, or decompresses to more than the limit."),
            (415, "Neither JSON nor our Arrow type."),
            (426, "Written by a newer protocol."),
            (503, "The queue or the disk is full: send the same again after Retry-After seconds; or it has broken."),
        ),
    )
    async def post_batch(
        request: Request,
        stream_id: StreamId,
        seq: Annotated[int, Path(ge=0, le=MAX_SEQ, description="Counted from 0; resend under the same number.")],
    ) -> Ack:
        """Send a batch. When the answer comes, it is on disk, once, however often it was sent."""
        stream = store.stream(stream_id)  # before the body is read: unknown streams cost nothing
        request.scope["entrostat_run"] = stream.run_id
        content_type = request.headers.get("content-type", "")
        body = await request.body()
        tables = await run_sync(_decoded, body, content_type, max_bytes, limiter=decoding)
        is_duplicate = await asyncio.wrap_future(store.add_batch(stream_id, seq, tables, len(body)))
        run = stream.run_id
        return Ack(acked=seq, duplicate=is_duplicate, desired=store.desired(run), thresholds=store.thresholds(run))

    return routes


def _decoded(body: bytes, content_type: str, max_bytes: int) -> Tables:
    kind = content_type.split(";", maxsplit=1)[0].strip().lower()
    if kind == CONTENT_TYPE:
        return decode(body, max_bytes)
    if kind == "application/json":
        return decode_json(body)
    raise HttpError(415, "unknown_type", f"Content-Type is {kind!r}: send application/json or {CONTENT_TYPE}")
