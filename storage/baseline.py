"""The baseline of ``d_collapse``: fixed once, in the writer, and from then on every entropy histogram is held to it.

h* is the 80th percentile of token entropy over the first ``baseline_steps`` steps (SCOPE, Sec. 4.2), snapped to the
edge of a histogram bin: there, and only there, the share of tokens above it is known exactly, for every rank and step.
"""

import json
from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa

from entrostat.storage.rows import Batch
from entrostat.storage.streams import utc_now
from entrostat.storage.views import FORKING_RATE
from entrostat.wire.bins import edges_of
from entrostat.wire.tables import STEP_METRIC

DEFAULT_STEPS = 5
SHARE_ABOVE = 0.2
"""What the 80th percentile leaves above it."""
PATIENCE_STEPS = 20
"""A rank that never sends anything holds the baseline up so many steps beyond its end; then it is fixed without it."""

_VALID = "(s.valid_to_step is null or t.step <= s.valid_to_step)"
_HISTOGRAMS = (
    f"raw.histogram_part t join raw.stream s on t.stream = s.stream where t.run = ? and t.name = 'entropy' and {_VALID}"
)


def thresholds(cursor: duckdb.DuckDBPyConnection) -> dict[int, int]:
    """Run -> first bin at or above its threshold, for every run whose baseline is fixed."""
    return dict(cursor.execute("select run, threshold_bin from raw.baseline").fetchall())


def with_shares(batch: Batch, threshold_bin: int) -> Batch:
    """``batch`` with the parts of ``forking_rate`` that its entropy histograms give."""
    shares = _shares(batch.tables["histogram"], threshold_bin)
    metrics = batch.tables.get("step_metric", STEP_METRIC.empty_table())
    tables = batch.tables | {"step_metric": pa.concat_tables([metrics.cast(STEP_METRIC), shares])}
    return Batch(batch.stream, batch.seq, tables, batch.num_bytes, batch.received)


def has_entropy(batch: Batch) -> bool:
    """Whether the batch has a histogram of token entropy."""
    table = batch.tables.get("histogram")
    return table is not None and bool(pa.compute.any(pa.compute.equal(table["name"], "entropy")).as_py())


def _shares(histogram: pa.Table, threshold_bin: int) -> pa.Table:
    rows = histogram.filter(pa.compute.equal(histogram["name"], "entropy"))
    count = rows["count"].to_numpy().astype(np.float64)
    steps, place = np.unique(rows["step"].to_numpy(), return_inverse=True)
    total = np.bincount(place, weights=count, minlength=steps.size)
    above = np.bincount(place, weights=count * (rows["bin"].to_numpy() >= threshold_bin), minlength=steps.size)
    columns = [
        pa.array(steps, pa.int32()),
        pa.array([FORKING_RATE] * steps.size, pa.string()),
        pa.array(["mean"] * steps.size, pa.string()),
        pa.array(np.stack([total, above], axis=1).tolist(), pa.list_(pa.float64())),
    ]
    return pa.table(columns, schema=STEP_METRIC)


def fix_if_due(cursor: duckdb.DuckDBPyConnection, run: int) -> int | None:
    """Fix the run's baseline if all its ranks have gone beyond it.

    Returns:
        The first bin at or above the threshold; None while it is not due.
    """
    steps = _first_steps(cursor, run)
    if steps is None or not _is_passed(cursor, run, steps[1]):
        return None
    bins = cursor.execute(
        f"select t.bin, sum(t.count)::bigint from {_HISTOGRAMS} and t.step between ? and ? group by t.bin order by 1",
        [run, *steps],
    ).fetchall()
    found = threshold_of(bins)
    if found is None:
        return None
    index, rate, num_tokens = found
    cursor.execute(
        "insert into raw.baseline values (?, ?, ?, ?, ?, ?, ?, ?)",
        [run, edges_of(index)[0], index, rate, *steps, num_tokens, utc_now()],
    )
    _share_what_is_there(cursor, run)
    return index


def threshold_of(bins: Sequence[tuple[int, int]]) -> tuple[int, float, int] | None:
    """Where the share of tokens above is nearest to ``SHARE_ABOVE`` and not 0.

    Args:
        bins: (bin, count), ascending.

    Returns:
        The first bin at or above the threshold, the exact share there, and the number of tokens; None without tokens.
    """
    num_tokens = sum(count for _, count in bins)
    if num_tokens == 0:
        return None
    best, above = (0, 2.0), 0
    for index, count in reversed(bins):
        above += count
        share = above / num_tokens
        if above and abs(share - SHARE_ABOVE) < abs(best[1] - SHARE_ABOVE):
            best = (index, share)
    return *best, num_tokens


def _first_steps(cursor: duckdb.DuckDBPyConnection, run: int) -> tuple[int, int] | None:
    """First and last step of the baseline, once there are as many."""
    num_steps = _baseline_steps(cursor, run)
    rows = cursor.execute(f"select distinct t.step from {_HISTOGRAMS} order by 1 limit ?", [run, num_steps]).fetchall()
    return (rows[0][0], rows[-1][0]) if len(rows) == num_steps else None


def _baseline_steps(cursor: duckdb.DuckDBPyConnection, run: int) -> int:
    rows = cursor.execute("select settings from raw.run where run = ?", [run]).fetchall()
    value = json.loads(rows[0][0]).get("baseline_steps", DEFAULT_STEPS) if rows else DEFAULT_STEPS
    return value if isinstance(value, int) and value >= 1 else DEFAULT_STEPS


def _is_passed(cursor: duckdb.DuckDBPyConnection, run: int, to_step: int) -> bool:
    """Whether every rank that counts has sent something of a later step."""
    rows = cursor.execute(
        """
        select count(*) filter (where last_step > $to), greatest(count(*), max(world_size)), max(last_step)
        from (
            select max(t.last_step) as last_step, any_value(s.world_size) as world_size
            from raw.batch t join raw.stream s on t.stream = s.stream
            where t.run = $run and s.valid_to_step is null
                and t.stream in (select h.stream from raw.histogram_part h where h.run = $run and h.name = 'entropy')
            group by t.stream
        )
        """,
        {"to": to_step, "run": run},
    ).fetchall()
    num_beyond, num_needed, last_step = rows[0]
    return last_step is not None and (num_beyond >= num_needed or last_step > to_step + PATIENCE_STEPS)


def _share_what_is_there(cursor: duckdb.DuckDBPyConnection, run: int) -> None:
    """The parts of ``forking_rate`` for the histograms that came before the baseline was fixed."""
    cursor.execute(
        f"""
        insert into raw.step_part (run, stream, batch_seq, line, received, step, name, merge, state)
        select h.run, h.stream, 0, 0, ?, h.step, '{FORKING_RATE}', 'mean',
            [sum(h.count), coalesce(sum(h.count) filter (where h.bin >= b.threshold_bin), 0)]::double[]
        from raw.histogram_part h join raw.baseline b on b.run = h.run
        where h.run = ? and h.name = 'entropy' group by h.run, h.stream, h.step
        """,
        [utc_now(), run],
    )
