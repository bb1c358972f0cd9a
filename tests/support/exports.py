"""Exports as files: made by a store, taken apart, changed and put together again with a manifest that fits."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from entrostat.storage.views import PUBLIC_VIEWS
from entrostat.wire.archive import MANIFEST


def tar_of(store, run="full"):
    exported = store.transfers.export(run)
    try:
        data = b"".join(exported.tar())
        assert len(data) == exported.num_bytes
        return data
    finally:
        exported.close()


def files_of(tar):
    """Name -> bytes, as any program reads a tar."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened}


def tables_of(tar):
    """Table -> rows."""
    return {
        name.removesuffix(".parquet"): pq.read_table(io.BytesIO(data))
        for name, data in files_of(tar).items()
        if name != MANIFEST
    }


def packed(files):
    """A tar of files, the manifest first."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as made:
        for name in sorted(files, key=lambda name: name != MANIFEST):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            made.addfile(info, io.BytesIO(files[name]))
    return out.getvalue()


def rewritten(tar, tables=None, files=None, **manifest):
    """The export with other rows, bytes or words in its manifest, and sizes, hashes and numbers of rows that fit.

    Args:
        tables: table -> rows; None leaves the table out.
        files: name -> bytes.
    """
    held = files_of(tar)
    document = json.loads(held.pop(MANIFEST))
    rows = {entry["name"]: entry["rows"] for entry in document["files"]}
    for name, table in (tables or {}).items():
        held.pop(f"{name}.parquet")
        if table is not None:
            held[f"{name}.parquet"], rows[f"{name}.parquet"] = parquet(table), table.num_rows
    held |= files or {}
    document["files"] = [
        {"name": name, "rows": rows[name], "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in held.items()
    ]
    return packed({MANIFEST: json.dumps(document | manifest).encode(), **held})


def parquet(table):
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def with_column(table, name, values):
    field = table.schema.field(name)
    column = pa.array(values, field.type)
    return table.set_column(table.column_names.index(name), field.with_nullable(True), column)


def rows_of_views(query, run="full"):
    """View -> its rows of a run, in one order."""
    found = {}
    for view in sorted(PUBLIC_VIEWS - {"rule", "audit"}):  # these are the server's, not a run's
        columns = query(f"select * from {view} limit 0", 1).table.column_names
        order = ", ".join(f'"{column}"' for column in columns)
        found[view] = query(f"select * from {view} where run = '{run}' order by {order}", 1_000_000).table
    return found


def unpacked(tar, folder: Path):
    folder.mkdir()
    for name, data in files_of(tar).items():
        (folder / name).write_bytes(data)
    return folder


def is_same(found, wanted):
    """Equal, but for the last bits of floats: even on one thread, in which order the engine adds up is its own."""
    if found.schema != wanted.schema or found.num_rows != wanted.num_rows:
        return False
    for name in wanted.column_names:
        one, other = found[name].combine_chunks(), wanted[name].combine_chunks()
        if not pa.types.is_floating(one.type):
            if not one.equals(other):
                return False
        elif not np.allclose(one.to_numpy(False), other.to_numpy(False), rtol=1e-12, atol=1e-15, equal_nan=True):
            return False
    return True
