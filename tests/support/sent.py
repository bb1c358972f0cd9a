"""What a sender is given, and what of it is on disk."""

import pyarrow as pa

from entrostat.wire.codec import decode
from entrostat.wire.tables import TOKEN

_DEFAULTS = {"bool": True, "string": "uniform", "float": 0.5}


def token_rows(count, step=1):
    row = {f.name: None if f.nullable else _DEFAULTS.get(str(f.type), 1) for f in TOKEN}
    return pa.Table.from_pylist([row | {"step": step, "pos": pos} for pos in range(count)], schema=TOKEN)


def spooled_steps(root):
    files = sorted(root.rglob("*.batch"))
    return [
        s for f in files for s in decode(f.read_bytes()).get("step_metric", {"step": pa.array([])})["step"].to_pylist()
    ]
