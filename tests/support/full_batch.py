"""Rows for every table of the wire, and many tokens."""

import numpy as np
import pyarrow as pa

from entrostat.wire.tables import TABLES, TOKEN

_VALUES = {"string": "a", "bool": True, "timestamp[us]": "2026-01-01T00:00:00", "double": 0.5, "float": 0.5}


def full_batch(step, num_tokens=3):
    """A batch with rows in every table, as JSON has them."""
    batch = {name: [_row(schema, step)] for name, schema in TABLES.items()}
    batch["step_metric"] = [
        {"step": step, "name": "entropy_mean", "merge": "mean", "state": [2.0, 1.0]},
        {"step": step, "name": "n", "merge": "sum", "state": [1.0]},
    ]
    batch["histogram"] = [{"step": step, "name": "entropy", "bin": 200 + k, "count": 5, "total": 1.0} for k in range(2)]
    batch["token"] = [batch["token"][0] | {"pos": pos} for pos in range(num_tokens)]
    return batch


def _row(schema, step):
    row = {field.name: _VALUES.get(str(field.type), 1) for field in schema if "list" not in str(field.type)}
    row |= {"detail": "{}"} if "detail" in row else {}
    return row | {"step": step}


def many_tokens(step, count):
    """Token rows that do not compress well."""
    random, k = np.random.default_rng(step), np.arange(count)
    columns = {
        "step": np.full(count, step), "seq": k // 256, "pos": k % 256, "token_id": random.integers(0, 50_000, count),
        "logp": -random.exponential(0.6, count), "entropy": random.exponential(0.5, count),
        "reason": ["all"] * count, "prob": np.ones(count),
    }  # fmt: skip
    arrays = [pa.array(columns[f.name]).cast(f.type) if f.name in columns else pa.nulls(count, f.type) for f in TOKEN]
    return pa.table(arrays, schema=TOKEN)
