"""Reading back what a run left in its spool."""

import json

import pyarrow as pa

from entrostat.wire import codec
from entrostat.wire.mergeable import Part


def spooled(folder):
    """Every table spooled under ``folder``, concatenated, as pandas frames; and the openings, oldest first."""
    tables, openings = {}, []
    for stream in sorted(folder.glob("*/*/open.json"), key=lambda p: p.stat().st_mtime_ns):
        openings.append(json.loads(stream.read_text()))
        for batch in sorted(stream.parent.glob("*.batch")):
            for name, table in codec.decode(batch.read_bytes()).items():
                tables.setdefault(name, []).append(table)
    return {name: pa.concat_tables(parts).to_pandas() for name, parts in tables.items()}, openings


def values_of(metrics, step):
    """Name -> value of a step's rows."""
    rows = metrics[metrics.step == step]
    return {r["name"]: Part(r["merge"], tuple(r["state"])).value for _, r in rows.iterrows()}
