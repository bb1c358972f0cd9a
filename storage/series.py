"""Curves thinned in SQL: minimum, mean and maximum of each bucket of steps, so that no spike is ever hidden."""

from typing import Any

import duckdb
import numpy as np

from entrostat.storage.derived import metrics_of
from entrostat.storage.runs import key_of
from entrostat.wire.bins import edges_of
from entrostat.wire.errors import NotFound
from entrostat.wire.signals import HISTOGRAMS

_SPAN = "select min(step), max(step) from raw.{table} where run = $run and {names} and step between $first and $last"
_SERIES = """
with chosen as materialized ({chosen}), clock as (
    select step, coalesce(max(value) filter (where name = 'wall_time_s'), max(epoch(received))) as time
    from chosen group by step
)
select name, min(step) as step, max(time) as time, avg(value) as value, min(value) as low, max(value) as high,
    case when count(se) = count(*) then sqrt(sum(se * se)) / count(*) end as se
from chosen join clock using (step)
where value is not null
group by name, (step - $origin) // $bucket order by name, step
"""
_HISTOGRAM = """
select (step - $origin) // $bucket as place, min(step) as step, bin, sum(count)::bigint as count
from histogram where run = $run_id and name = $name and step between $first and $last
group by all order by place, bin
"""
_WINDOW = "run = $run_id and step between $first and $last"
_NO_STEP = 2**31 - 1


def series(
    cursor: duckdb.DuckDBPyConnection,
    run_id: str,
    names: list[str],
    from_step: int | None,
    to_step: int | None,
    points: int,
) -> list[dict[str, Any]]:
    """The signals ``names`` of a run, one dictionary each, as ``GET /v1/series`` gives them.

    A signal that the run does not have has empty lists. Times are seconds since 1970: the trainer's clock where it
    told it (``wall_time_s``), else when the server got the step.

    Raises:
        NotFound: no such run.
    """
    first, last = from_step or 0, _NO_STEP if to_step is None else to_step
    key = key_of(cursor, run_id)
    low, high = cursor.execute(
        _SPAN.format(table="step_part", names="true"), {"run": key, "first": first, "last": last}
    ).fetchall()[0]
    empty: dict[str, list[float]] = {column: [] for column in ("step", "time", "value", "low", "high", "se")}
    if low is None:
        return [{"run": run_id, "name": name, **empty, "bucket_steps": 1} for name in names]
    bucket = bucket_steps(low, high, points)
    # Names as single parameters: only a plain IN list reaches through the view into the scan.
    asked = {f"name_{i}": name for i, name in enumerate(dict.fromkeys([*names, "wall_time_s"]))}
    rows = cursor.sql(
        _SERIES.format(chosen=metrics_of(asked.values(), _WINDOW).format(names=", ".join(f"${key}" for key in asked))),
        params={"run_id": run_id, "first": low, "last": high, "origin": low, "bucket": bucket, **asked},
    ).to_arrow_table()
    by_name: dict[str, dict[str, list[float]]] = {}
    found = np.asarray(rows["name"].to_pylist(), dtype=object)
    for name in dict.fromkeys(names):
        part = rows.filter(found == name)
        by_name[name] = {column: part[column].to_pylist() for column in empty}
    return [
        {"run": run_id, "name": name, **columns, "bucket_steps": bucket}
        | ({"se": None} if all(se is None for se in columns["se"]) else {})
        for name, columns in by_name.items()
    ]


def histogram(
    cursor: duckdb.DuckDBPyConnection,
    run_id: str,
    name: str,
    from_step: int | None,
    to_step: int | None,
    points: int,
) -> dict[str, Any]:
    """A histogram over steps, neighbouring steps added up, as ``GET /v1/runs/{run}/histogram`` gives it."""
    if name not in HISTOGRAMS:
        raise NotFound(f"no histogram {name!r}: there are {sorted(HISTOGRAMS)}")
    first, last = from_step or 0, _NO_STEP if to_step is None else to_step
    key = key_of(cursor, run_id)
    low, high = cursor.execute(
        _SPAN.format(table="histogram_part", names="name = $name"),
        {"run": key, "first": first, "last": last, "name": name},
    ).fetchall()[0]
    shown: dict[str, Any] = {"name": name, "unit": HISTOGRAMS[name].unit}
    if low is None:
        return shown | {"step": [], "bin": [], "low": [], "high": [], "count": [], "bucket_steps": 1}
    bucket = bucket_steps(low, high, points)
    rows = cursor.execute(
        _HISTOGRAM,
        {"run_id": run_id, "name": name, "first": low, "last": high, "origin": low, "bucket": bucket},
    ).fetchall()
    steps = {place: min(row[1] for row in rows if row[0] == place) for place in dict.fromkeys(r[0] for r in rows)}
    bins = sorted({row[2] for row in rows})
    counts = np.zeros((len(steps), len(bins)), np.int64)
    row_of, column_of = {p: i for i, p in enumerate(steps)}, {b: i for i, b in enumerate(bins)}
    for place, _, index, count in rows:
        counts[row_of[place], column_of[index]] = count
    edges = [edges_of(index) for index in bins]
    return shown | {
        "step": list(steps.values()),
        "bin": bins,
        "low": [edge[0] for edge in edges],
        "high": [edge[1] for edge in edges],
        "count": counts.tolist(),
        "bucket_steps": bucket,
    }


def bucket_steps(first: int, last: int, points: int) -> int:
    """Steps to a bucket, so that ``first`` to ``last`` make at most ``points`` buckets."""
    return max(1, -(-(last - first + 1) // points))
