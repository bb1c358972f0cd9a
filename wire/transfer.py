"""Runs out of a server and into one, as files: streamed, never whole in memory, checked before they get their name."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx

from entrostat.wire.archive import (
    CHUNK_BYTES,
    MANIFEST,
    Manifest,
    Member,
    packed,
    read_manifest,
    reading,
    tar_bytes,
    verified,
)
from entrostat.wire.client import Client, refusal
from entrostat.wire.errors import MalformedExport, ServerDown, TransferError

TAR = "application/x-tar"
PATIENCE_S = 3600.0
"""So long a server may write an export before it begins to send, or take one in before it answers."""

Progress = Callable[[int, int], object]
"""Told of the bytes done and the bytes in all."""


class TransferClient(Client):
    """A client that also moves whole runs. Its methods raise ``Refused`` and ``ServerDown`` as ``Client``'s do."""

    def export_run(self, run_id: str, to: Path, on_progress: Progress = lambda done, total: None) -> Manifest:
        """Write a run to ``to``: one file where that ends in ``.tar``, else a folder; there only once it is whole.

        Raises:
            TransferError: something is there already, or it cannot be written.
            MalformedExport: what came is damaged.
        """
        if to.exists():
            raise TransferError(f"{to} is there already: give another name, or remove it first")
        part = to.with_name(to.name + ".part")
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            _remove(part)
            with self._exported(run_id, on_progress) as pieces:
                manifest = _to_tar(pieces, part) if to.suffix == ".tar" else _to_folder(pieces, part)
            part.rename(to)
        except OSError as error:
            _remove(part)
            raise TransferError(f"{to} cannot be written: {error}") from error
        except BaseException:
            _remove(part)
            raise
        return manifest

    def import_run(
        self, path: Path, name: str | None = None, on_progress: Progress = lambda done, total: None
    ) -> dict[str, Any]:
        """Send an export, a folder or a tar; returns ``run``, ``streams`` and ``rows`` as the server took them in.

        Raises:
            MalformedExport: it is none.
            TransferError: it cannot be read.
        """
        with contextlib.ExitStack() as held:
            try:
                pieces, total = _from_folder(path, held) if path.is_dir() else _from_file(path, held)
            except OSError as error:
                raise TransferError(f"{path} cannot be read: {error}") from error
            request = self._http.build_request(
                "POST",
                "/v1/runs/import",
                params={"as": name} if name else {},
                headers={"Content-Type": TAR, "Content-Length": str(total)},
                content=_counted(pieces, total, on_progress),
                timeout=httpx.Timeout(60.0, read=PATIENCE_S),
            )
            try:
                response = self._http.send(request)
            except httpx.HTTPError as error:
                raise ServerDown(self.url, str(error) or type(error).__name__) from error
        if not response.is_success:
            raise refusal(response)
        return dict(self._document(response))

    @contextlib.contextmanager
    def _exported(self, run_id: str, on_progress: Progress) -> Iterator[Iterator[bytes]]:
        timeout = httpx.Timeout(60.0, read=PATIENCE_S)
        try:
            with self._http.stream("GET", f"/v1/runs/{quote(run_id, safe='')}/export", timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise refusal(response)
                total = int(response.headers.get("Content-Length", 0))
                yield _counted(response.iter_bytes(CHUNK_BYTES), total, on_progress)
        except httpx.HTTPError as error:
            raise ServerDown(self.url, str(error) or type(error).__name__) from error


def _counted(pieces: Iterator[bytes], total: int, on_progress: Progress) -> Iterator[bytes]:
    done = 0
    for piece in pieces:
        done += len(piece)
        yield piece
        on_progress(done, total)


def _to_tar(pieces: Iterator[bytes], part: Path) -> Manifest:
    with part.open("wb") as file:

        def copied() -> Iterator[bytes]:
            for piece in pieces:
                file.write(piece)
                yield piece

        manifest = verified(reading(copied()), lambda _: lambda _: None)
        os.fsync(file.fileno())
    return manifest


def _to_folder(pieces: Iterator[bytes], part: Path) -> Manifest:
    part.mkdir()
    files: list[BinaryIO] = []
    with contextlib.ExitStack() as open_files:

        def take(name: str) -> Callable[[bytes], object]:  # a name that an export has, never a path
            file = open_files.enter_context((part / name).open("wb"))
            files.append(file)
            return file.write

        manifest = verified(reading(pieces), take)
        for file in files:  # the run may be deleted after this
            file.flush()
            os.fsync(file.fileno())
    return manifest


def _from_folder(folder: Path, held: contextlib.ExitStack) -> tuple[Iterator[bytes], int]:
    manifest = folder_manifest(folder)
    members = []
    for name in (MANIFEST, *(entry.name for entry in manifest.files)):
        path = folder / name
        if not path.is_file():
            raise MalformedExport(f"is missing in {folder}, though the manifest names it", name)
        members.append(Member(name, path.stat().st_size, held.enter_context(path.open("rb"))))
    return packed(members), tar_bytes(member.size for member in members)


def folder_manifest(folder: Path) -> Manifest:
    """The manifest of an export's folder. Raises MalformedExport where it is none."""
    path = folder / MANIFEST
    if not path.is_file():
        raise MalformedExport(f"there is no {MANIFEST} in {folder}: is it what `entrostat runs export` wrote?")
    return read_manifest(path.read_bytes())


def _from_file(path: Path, held: contextlib.ExitStack) -> tuple[Iterator[bytes], int]:
    if not path.is_file():
        raise MalformedExport(f"there is no {path}")
    file = held.enter_context(path.open("rb"))
    return iter(lambda: file.read(CHUNK_BYTES), b""), path.stat().st_size


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
