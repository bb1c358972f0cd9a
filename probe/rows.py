"""A step's data as the tables of the wire."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from entrostat.probe.hashes import hash63
from entrostat.probe.selection import NUM_REASONS, reason_name
from entrostat.probe.signals.covariance import cov_token
from entrostat.probe.signals.entropy import curves
from entrostat.probe.signals.scope import scope_token
from entrostat.probe.step import Ints, StepData
from entrostat.wire.bins import histogram_of
from entrostat.wire.cells import cells_of
from entrostat.wire.declared.text import CATEGORIES
from entrostat.wire.mergeable import Part
from entrostat.wire.notices import detail_text, sendable
from entrostat.wire.tables import CELL, EVENT, HISTOGRAM, PROFILE, SEQUENCE, STEP_METRIC, TOKEN


def _table(schema: pa.Schema, columns: Mapping[str, Any], num_rows: int) -> pa.Table:
    """Rows of ``schema``; a column that is absent or None is all null."""
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(num_rows, field.type))
        elif np.isscalar(values):
            arrays.append(pa.repeat(pa.scalar(values, field.type), num_rows))
        else:
            array = pa.array(values, from_pandas=False)
            arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.table(arrays, schema=schema)


def metric_rows(step: int, parts: Mapping[str, Part]) -> pa.Table:
    """``step_metric`` rows; parts that are not finite are left out (a NaN says nothing and cannot be merged)."""
    kept = {name: part for name, part in parts.items() if np.isfinite(part.state).all()}
    return _table(
        STEP_METRIC,
        {
            "step": step,
            "name": list(kept),
            "merge": [p.merge for p in kept.values()],
            "state": pa.array([list(p.state) for p in kept.values()], pa.list_(pa.float64())),
        },
        len(kept),
    )


def histogram_rows(step: int, data: StepData) -> pa.Table:
    """``histogram`` rows of the step's tokens: entropy, and covariance and SCOPE score where there are advantages."""
    values = {"entropy": data.entropy}
    if data.advantage is not None:
        values |= {"cov_token": cov_token(data), "scope_score": scope_token(data)}
    tables = []
    for name, value in values.items():
        index, count, total = histogram_of(value)
        columns = {"step": step, "name": name, "bin": index, "count": count, "total": total}
        tables.append(_table(HISTOGRAM, columns, index.size))
    return pa.concat_tables(tables)


def profile_rows(step: int, data: StepData) -> pa.Table:
    """``profile`` rows: the curves over relative position, bins without a token left out."""
    tables = []
    for name, (count, total) in curves(data).items():
        bins = np.flatnonzero(count)
        columns = {"step": step, "name": name, "bin": bins, "count": count[bins], "total": total[bins]}
        tables.append(_table(PROFILE, columns, bins.size))
    return pa.concat_tables(tables)


def cell_rows(step: int, data: StepData) -> pa.Table:
    """``cell`` rows: the joint histogram of log-prob and advantage; none without advantages."""
    if data.advantage is None:
        return CELL.empty_table()
    cells = cells_of(data.logp, data.advantage)
    return _table(CELL, {"step": step, **cells}, cells["count"].size)


def sequence_rows(step: int, data: StepData) -> pa.Table:
    """``sequence`` rows: one a response with at least one valid token."""
    has_tokens = data.length > 0
    logp = data.mean_by_response(data.logp)
    columns = {
        "seq": np.arange(data.num_responses, dtype=np.int32),
        "prompt": data.prompt,
        "length": data.length,
        "truncated": data.truncated,
        "reward": _nullable(data.reward),
        "advantage": _nullable(data.response_advantage),
        "mean_logp": logp,
        "mean_entropy": data.mean_by_response(data.entropy),
        "ppl": np.exp(-logp),
        "completion": completion_hashes(data),
    }
    if data.reading is not None:
        columns |= {
            "answer": pa.array(data.reading.answer, pa.int64()),
            "format_violation": data.reading.format_violation,
            "language_mixing": data.reading.language_mixing,
            "repetition": data.reading.repetition,
        }
    kept = {name: value[has_tokens] if isinstance(value, np.ndarray) else value for name, value in columns.items()}
    kept = {
        name: value.filter(pa.array(has_tokens)) if isinstance(value, pa.Array) else value
        for name, value in kept.items()
    }
    return _table(SEQUENCE, {"step": step, **kept}, int(has_tokens.sum()))


def completion_hashes(data: StepData) -> Ints:
    """63 bits of each response's token ids [B]: equal ids, equal number, in every run and process."""
    ids = data.token_id.astype("<i8")
    ends = np.cumsum(data.length)
    return np.array(
        [hash63(ids[end - n : end].tobytes()) for n, end in zip(data.length, ends, strict=True)], dtype=np.int64
    )


_REASONS = pa.array([reason_name(bits) for bits in range(NUM_REASONS)])


def _nullable(values: np.ndarray | None) -> pa.Array | None:
    return None if values is None else pa.array(values, mask=~np.isfinite(values))


def token_rows(step: int, data: StepData, num_candidates: int) -> pa.Table:
    """``token`` rows: the kept tokens, with the first ``num_candidates`` candidates where they were measured."""
    kept = data.kept
    order = np.argsort(kept.token, kind="stable")
    token = kept.token[order]

    def of(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[token]

    columns: dict[str, Any] = {
        "step": step,
        "seq": of(data.seq),
        "pos": of(data.pos),
        "token_id": of(data.token_id),
        "logp": of(data.logp),
        "entropy": of(data.entropy),
        "advantage": of(data.advantage),
        "cov": None if data.advantage is None else cov_token(data)[token],
        "ratio": None if data.log_ratio is None else np.exp(data.log_ratio)[token],
        "sum_p2": of(data.sum_p2),
        "reason": _REASONS.take(pa.array(kept.reason[order])),  # no Python string a row
        "prob": kept.prob[order],
        "rollout_logp": _nullable(of(data.rollout_logp)),
    }
    columns |= _text_columns(data, token, order) | _candidate_columns(data, token, num_candidates)
    return _table(TOKEN, columns, token.size)


_CATEGORIES = pa.array(CATEGORIES)


def _text_columns(data: StepData, token: Ints, order: Ints) -> dict[str, Any]:
    if data.reading is None:
        return {}
    text = data.reading.kept_text
    return {
        "category": _CATEGORIES.take(pa.array(data.reading.category[token])),
        "text": None if text is None else [text[i] for i in order],
    }


def _candidate_columns(data: StepData, token: np.ndarray, num_candidates: int) -> dict[str, Any]:
    seen = data.candidates
    if seen is None or token.size == 0:
        return {}
    place = np.full(data.logp.size, -1)
    place[seen.token] = np.arange(seen.token.size)
    row = place[token]
    if (row < 0).any():
        raise AssertionError("a kept token was not measured: kept rows are a subset of the measured ones")
    n = min(num_candidates, seen.top_ids.shape[1])
    return {
        "rank": seen.rank[row],
        "sum_p2": seen.sum_p2[row],
        "support95": seen.support95[row],
        "self_certainty": seen.self_certainty[row],
        "logsumexp": seen.logsumexp[row],
        "top_ids": _lists(seen.top_ids[row, :n].astype(np.int32)),
        "top_logps": _lists(seen.top_logps[row, :n].astype(np.float32)),
    }


def _lists(values: np.ndarray) -> pa.Array:
    """[K, n] as K lists of n."""
    offsets = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(values.ravel()))


def event_rows(kind: str, message: str, step: int | None = None, detail: Mapping[str, Any] | None = None) -> pa.Table:
    """One ``event`` row, of now.

    Args:
        kind: for example ``run_started``.
        message: one sentence for a person.
        step: the optimizer step, where there is one.
        detail: the values behind it.
    """
    now = datetime.now(UTC).replace(tzinfo=None)
    row = {
        "step": [step],
        "time": [now],
        "kind": [kind],
        "message": [sendable(message)],
        "detail": [detail_text(detail)],
    }
    return pa.table([pa.array(row[f.name], f.type) for f in EVENT], schema=EVENT)
