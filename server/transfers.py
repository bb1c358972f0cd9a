"""A run out as a tar of Parquet files, and in. Files without a name on the database's disk, never a run in memory."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, BinaryIO

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from entrostat.server.auth import require
from entrostat.server.http_errors import HttpError, responses
from entrostat.server.settings import Settings
from entrostat.storage.errors import Busy
from entrostat.storage.exports.exporting import Exported
from entrostat.storage.store import Store
from entrostat.wire.archive import CHUNK_BYTES
from entrostat.wire.messages import RunId

TAR = "application/x-tar"
_IMPORT_PATH = "/v1/runs/import"
_BODY = {
    "requestBody": {
        "required": True,
        "description": "The tar that GET /v1/runs/{run}/export gave.",
        "content": {TAR: {"schema": {"type": "string", "format": "binary"}}},
    }
}


class ImportedRun(BaseModel):
    """What was taken in."""

    run: str = Field(description="The run's name here; name-2 where there was a run of its name.")
    streams: int
    rows: dict[str, int] = Field(description="Table -> rows.")


class Slots:
    """So many transfers at once, each of which takes disk; the next one is told to come back."""

    def __init__(self, number: int) -> None:
        self._number, self._free = number, threading.Semaphore(number)

    def take(self) -> None:
        """Take a slot. Raises Busy."""
        if not self._free.acquire(blocking=False):
            raise Busy(f"{self._number} runs are exported or imported, as many as may: try again", retry_after_s=10.0)

    def give_back(self) -> None:
        """Let the next one come."""
        self._free.release()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A slot for the time of a block. Raises Busy."""
        self.take()
        try:
            yield
        finally:
            self.give_back()


class _TarResponse(StreamingResponse):
    """Sends an export, and lets go of it when it is sent or the client is gone."""

    def __init__(self, exported: Exported, slots: Slots) -> None:
        self._exported, self._slots = exported, slots
        headers = {
            "Content-Length": str(exported.num_bytes),
            "Content-Disposition": f'attachment; filename="{exported.manifest.run_id}.tar"',
        }
        super().__init__(exported.tar(), headers=headers, media_type=TAR)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._exported.close()
            self._slots.give_back()


def larger_bodies(settings: Settings) -> dict[str, tuple[int, str]]:
    """Paths whose bodies go to disk, with their limit and its setting; see ``BodyLimit``."""
    return {_IMPORT_PATH: (settings.max_import_mb * 2**20, "max_import_mb")}


def router(store: Store, settings: Settings) -> APIRouter:
    """The routes of exports."""
    routes = APIRouter(prefix="/v1/runs", tags=["runs"])
    slots = Slots(settings.max_transfers)
    busy, no_room = (503, "As many transfers are under way as may be."), (507, "The server's disk is too full.")

    @routes.get(
        "/{run}/export",
        dependencies=[Depends(require("read"))],
        responses=responses((404, "No such run."), busy, no_room)
        | {200: {"content": {TAR: {}}, "description": "A tar: manifest.json, then a Parquet file for each table."}},
        response_class=StreamingResponse,
        summary="Export a run",
    )
    def export_run(run: RunId) -> StreamingResponse:
        """Every row of a run, of one moment, as Parquet files. It begins when they are written."""
        slots.take()
        try:
            return _TarResponse(store.transfers.export(run), slots)
        except BaseException:
            slots.give_back()
            raise

    # Not "ingest": an export brings what only a server writes (the ledger, what persons and rules did, what should be
    # on), and a token in a training environment must not be able to make that up.
    @routes.post(
        "/import",
        dependencies=[Depends(require("admin"))],
        openapi_extra=_BODY,
        responses=responses(
            (409, "The run is held here already, or the name is taken."),
            (413, "Over max_import_mb."),
            (415, "Not application/x-tar."),
            (426, "Of a newer entrostat."),
            busy,
            no_room,
        ),
        summary="Import a run",
    )
    async def import_run(
        request: Request,
        name: Annotated[RunId | None, Query(alias="as", description="Its name here; else its own.")] = None,
    ) -> ImportedRun:
        """Take in an exported run: all of it, or nothing. The answer comes after COMMIT."""
        _check_type(request)
        with slots.taken(), store.transfers.temporary_file() as file:
            await _receive(request, file, store)
            imported = await run_sync(store.transfers.import_, file, name)
        return ImportedRun(run=imported.run_id, streams=imported.num_streams, rows=imported.num_rows)

    return routes


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";", maxsplit=1)[0].strip().lower()
    if kind != TAR:
        raise HttpError(415, "unknown_type", f"Content-Type is {kind!r}: send {TAR}")


async def _receive(request: Request, file: BinaryIO, store: Store) -> None:
    """The body into ``file``, in pieces; blocking calls on a thread, because a full disk may block for long."""
    declared = request.headers.get("content-length", "0")
    await run_sync(store.transfers.check_room, int(declared) if declared.isdigit() else 0)
    waiting = bytearray()
    try:
        async for piece in request.stream():
            waiting += piece
            if len(waiting) >= CHUNK_BYTES:
                await run_sync(_put, file, bytes(waiting), store)
                waiting.clear()
    except ClientDisconnect as error:
        raise HttpError(400, "incomplete", "the export was cut off on its way: send it again") from error
    await run_sync(_put, file, bytes(waiting), store)


def _put(file: BinaryIO, data: bytes, store: Store) -> None:
    store.transfers.check_room(len(data))
    file.write(data)
    file.flush()
