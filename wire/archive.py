"""A run as files: Parquet tables and a manifest, in a folder or in one tar of it.

The tar is written and read here, a header at a time: only plain files with the names that an export has are taken from
one, and no name in it ever becomes a path by itself. What a manifest promises (size, SHA-256) is checked by whoever
reads the files' bytes.
"""

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Annotated, BinaryIO, NamedTuple

from pydantic import Field, StringConstraints, ValidationError

from entrostat.wire.errors import MalformedExport, UnknownVersion
from entrostat.wire.messages import Message, RunId

FORMAT = 1
"""Of the manifest and the layout. A higher one was written by a newer entrostat and is refused."""
MANIFEST = "manifest.json"
SUFFIX = ".parquet"
MAX_MANIFEST_BYTES = 2**20
MAX_FILES = 64
CHUNK_BYTES = 2**20
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
"""What a tar ends with."""

FileName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z_]{0,63}\.parquet$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(Message):
    """What the manifest says of a file."""

    name: FileName = Field(description="The table's name and .parquet.")
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    sha256: Sha256

    @property
    def table(self) -> str:
        """Name of the table whose rows it has."""
        return self.name.removesuffix(SUFFIX)


class Manifest(Message):
    """``manifest.json``: what the export is of, and what is in it."""

    format: int = FORMAT
    schema_version: int = Field(ge=0, description="Of the server's tables.")
    entrostat: str = Field(max_length=64, description="Version of the entrostat that wrote it.")
    run_id: RunId
    exported: datetime = Field(description="The moment that the rows are of.")
    files: list[FileEntry] = Field(max_length=MAX_FILES)


class Member(NamedTuple):
    """A file on its way into a tar; ``file`` stands at its first byte."""

    name: str
    size: int
    file: BinaryIO


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as it lies in the folder."""
    return manifest.model_dump_json(indent=1).encode() + b"\n"


def read_manifest(raw: bytes) -> Manifest:
    """The manifest of its bytes.

    Raises:
        MalformedExport: it is none.
        UnknownVersion: of a newer format.
    """
    try:
        document = json.loads(raw)
        found = document["format"]
        if isinstance(found, int) and found > FORMAT:
            raise UnknownVersion(f"the export is of format {found}, this entrostat knows {FORMAT}: update it")
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise MalformedExport(f"{place}: {first['msg']}", MANIFEST) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedExport(f"is not the manifest of an export: {error!r}", MANIFEST) from error
    names = [entry.name for entry in manifest.files]
    if len(set(names)) != len(names):
        raise MalformedExport("names a file twice", MANIFEST)
    return manifest


def tar_bytes(sizes: Iterable[int]) -> int:
    """Size of the tar of files of these sizes."""
    return sum(BLOCK + size + -size % BLOCK for size in sizes) + len(END)


def packed(members: Iterable[Member]) -> Iterator[bytes]:
    """The bytes of the tar of ``members``, in pieces of at most ``CHUNK_BYTES``.

    Raises:
        OSError: a file is shorter than it was said to be.
    """
    for name, size, file in members:
        yield _header(name, size)
        left = size
        while left:
            piece = file.read(min(left, CHUNK_BYTES))
            if not piece:
                raise OSError(f"{name} ends {left} bytes too early")
            left -= len(piece)
            yield piece
        yield bytes(-size % BLOCK)
    yield END


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.GNU_FORMAT)


def entries(read: Callable[[int], bytes]) -> Iterator[tuple[str, int]]:
    """(name, size) of each file of a tar; who iterates takes exactly ``size`` bytes by ``read`` before the next.

    Raises:
        MalformedExport: it ends too early, is no tar, or has anything but plain files with an export's names.
    """
    seen: set[str] = set()
    while True:
        block = exactly(read, BLOCK)
        if not any(block):
            exactly(read, BLOCK)  # the end is two of them
            return
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise MalformedExport(f"is not a tar of an export: {error}") from error
        _check_entry(info, seen)
        yield info.name, info.size
        exactly(read, -info.size % BLOCK)


def _check_entry(info: tarfile.TarInfo, seen: set[str]) -> None:
    shown = repr(info.name[:100])
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise MalformedExport(f"{shown} in it is not a plain file: give what `entrostat runs export` wrote")
    is_known = info.name == MANIFEST or (info.name.endswith(SUFFIX) and _is_table(info.name.removesuffix(SUFFIX)))
    if not is_known or info.size < 0:
        raise MalformedExport(f"{shown} in it is in no export: give what `entrostat runs export` wrote")
    if info.name in seen or len(seen) > MAX_FILES:
        raise MalformedExport(f"{shown} is in it twice, or it has more files than an export has")
    seen.add(info.name)


def _is_table(name: str) -> bool:
    return 0 < len(name) <= 64 and all(c == "_" or "a" <= c <= "z" for c in name)


def exactly(read: Callable[[int], bytes], size: int) -> bytes:
    """``size`` bytes, however ``read`` cuts them. Raises MalformedExport where there are fewer."""
    pieces = []
    while size:
        piece = read(size)
        if not piece:
            raise MalformedExport("ends too early: it was cut off on its way, or while it was written")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def verified(read: Callable[[int], bytes], take: Callable[[str], Callable[[bytes], object]]) -> Manifest:
    """Read an export's tar from one end to the other and hold it to its manifest.

    Args:
        read: at most so many bytes of the tar; none at its end.
        take: called with each file's name when ``read`` stands at its first byte; what it returns gets its bytes.

    Raises:
        MalformedExport: it is no export, or is damaged. What was taken until then is worth nothing.
        UnknownVersion: of a newer format.
    """
    files = entries(read)
    name, size = next(files, ("nothing", 0))
    if name != MANIFEST or size > MAX_MANIFEST_BYTES:
        raise MalformedExport(f"begins with {name!r}, not with its {MANIFEST}: give what `entrostat runs export` wrote")
    raw = exactly(read, size)
    manifest = read_manifest(raw)
    take(MANIFEST)(raw)
    left = {entry.name: entry for entry in manifest.files}
    for name, size in files:
        entry = left.pop(name, None)
        if entry is None or entry.bytes != size:
            said = "does not know it" if entry is None else f"says {entry.bytes}"
            raise MalformedExport(f"has {size} bytes, the manifest {said}", name)
        checked_copy(read, entry, take(name))
    if left:
        raise MalformedExport("is missing, though the manifest names it", min(left))
    return manifest


def checked_copy(read: Callable[[int], bytes], entry: FileEntry, write: Callable[[bytes], object]) -> None:
    """Hand ``entry.bytes`` bytes on, and hold them to the manifest's SHA-256. Raises MalformedExport."""
    digest, left = hashlib.sha256(), entry.bytes
    while left:
        piece = exactly(read, min(left, CHUNK_BYTES))
        digest.update(piece)
        write(piece)
        left -= len(piece)
    if digest.hexdigest() != entry.sha256:
        raise MalformedExport("is damaged: its SHA-256 is not the manifest's", entry.name)


def reading(pieces: Iterator[bytes]) -> Callable[[int], bytes]:
    """``read`` of what comes in pieces of any size."""
    rest = b""

    def read(size: int) -> bytes:
        nonlocal rest
        while not rest:
            rest = next(pieces, b"")
            if not rest:
                return b""
        taken, rest = rest[:size], rest[size:]
        return taken

    return read
