"""Copies of the database, made while batches come in; and whether it is whole."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from entrostat.server.auth import require
from entrostat.server.http_errors import responses
from entrostat.storage.backups import Backup
from entrostat.storage.store import Store

_ADMIN = [Depends(require("admin"))]
_NONE = (404, "No such backup.")
_NO_ROOM = (507, "The disk has no room for a copy; the message has the numbers.")
_BUSY = (503, "One is being made: ask again after Retry-After seconds.")
_ANY = "application/octet-stream"

Name = Annotated[str, Path(description="As in the list: made by the server, of the time.", max_length=64)]


class BackupInfo(BaseModel):
    """A copy on the server's disk."""

    name: str
    created: str = Field(description="ISO 8601, UTC.")
    num_bytes: int


class BackupMade(BackupInfo):
    """A new copy: opened once and counted."""

    schema_version: int = Field(description="Version of its tables.")
    num_runs: int
    num_batches: int
    held_s: float = Field(description="So long batches waited for the copy.")


class BackupList(BaseModel):
    """Copies, newest first."""

    backups: list[BackupInfo]


class FindingInfo(BaseModel):
    """Something about a table."""

    table: str
    what: str
    is_damage: bool = Field(description="False: worth knowing, and as it may be.")


class CheckReport(BaseModel):
    """What was read, and what was found."""

    is_sound: bool
    num_rows: int
    findings: list[FindingInfo]


def router(store: Store) -> APIRouter:
    """The routes of who looks after the data."""
    routes = APIRouter(prefix="/v1", tags=["care"], dependencies=_ADMIN)

    @routes.post("/backups", status_code=201, responses=responses(_NO_ROOM, _BUSY), summary="Make a backup")
    def make_backup() -> BackupMade:
        """Copy the database as it is now; the answer comes when the copy is on disk and was opened."""
        made = store.backups.make()
        contents = made.contents
        return BackupMade(
            **_info(made.backup).model_dump(),
            schema_version=contents.schema_version,
            num_runs=contents.num_runs,
            num_batches=contents.num_batches,
            held_s=made.held_s,
        )

    @routes.get("/backups", responses=responses(), summary="List backups")
    def list_backups() -> BackupList:
        """The copies on the server's disk, newest first."""
        return BackupList(backups=[_info(backup) for backup in store.backups.all()])

    @routes.get(
        "/backups/{name}",
        response_class=FileResponse,
        responses=responses(_NONE) | {200: {"content": {_ANY: {}}, "description": "The database file."}},
        summary="Download a backup",
    )
    def get_backup(name: Name) -> FileResponse:
        """The file, piece by piece."""
        return FileResponse(store.backups.path(name), media_type=_ANY, filename=name)

    @routes.delete("/backups/{name}", status_code=204, responses=responses(_NONE), summary="Remove a backup")
    def remove_backup(name: Name) -> None:
        """Remove a copy from the server's disk, for good."""
        store.backups.remove(name)

    @routes.get("/check", responses=responses(), summary="Is the database whole?")
    def check() -> CheckReport:
        """Reads every value there is, and holds the ledger against the rows; batches go on coming in."""
        report = store.check()
        findings = [FindingInfo(table=f.table, what=f.what, is_damage=f.is_damage) for f in report.findings]
        return CheckReport(is_sound=report.is_sound, num_rows=report.num_rows, findings=findings)

    return routes


def _info(backup: Backup) -> BackupInfo:
    return BackupInfo(name=backup.name, created=backup.created.isoformat(), num_bytes=backup.num_bytes)
