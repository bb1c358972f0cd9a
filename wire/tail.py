"""Rows that wait for their batch, on disk: records appended to a file, which outlive the process that wrote them.

A record is its size and CRC-32, the number of the handed-over step that it was made of (``wire/handover.py``; 0: none),
then the item's tables as Arrow IPC streams. It is written to the page cache and not synced: a killed process loses
nothing of it, a host that loses power may. A torn end is left out.
"""

import contextlib
import os
import struct
import zlib
from pathlib import Path

import pyarrow as pa

from entrostat.wire.codec import Tables, decode_plain
from entrostat.wire.errors import MalformedBatch, UnknownVersion

_HEADER = struct.Struct("<QIQ")
"""Size, checksum, and which of the stream's handed-over steps it came from (0: none)."""


def append(path: Path, record: pa.Buffer, of_step: int = 0) -> None:
    """Add a record, made by ``encode_plain``.

    Raises:
        OSError: the disk refuses; what was there before is there still.
    """
    if not record.size:
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    before = os.fstat(fd).st_size
    try:
        left = memoryview(_HEADER.pack(record.size, zlib.crc32(record), of_step))
        for piece in (left, memoryview(record).cast("B")):
            _write_all(fd, piece)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, before)
        raise
    finally:
        os.close(fd)


def read(path: Path) -> tuple[Tables, set[int]]:
    """The rows of all whole records, table by table, and which handed-over steps they are of. Raises OSError."""
    data, at = path.read_bytes(), 0
    parts: dict[str, list[pa.Table]] = {}
    steps = set()
    while at + _HEADER.size <= len(data):
        size, checksum, of_step = _HEADER.unpack_from(data, at)
        record = data[at + _HEADER.size : at + _HEADER.size + size]
        if len(record) < size or zlib.crc32(record) != checksum:
            break
        at += _HEADER.size + size
        steps.add(of_step)
        with contextlib.suppress(MalformedBatch, UnknownVersion):  # of another version: what can be read is
            for name, table in decode_plain(pa.py_buffer(record)).items():
                parts.setdefault(name, []).append(table)
    return {name: pa.concat_tables(tables) for name, tables in parts.items()}, steps


def _write_all(fd: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(fd, piece) :]
