"""The runs that are watched from outside: live ones, and those that fell silent without saying that they end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import duckdb

LOST = ("queue_full", "spool_full")
"""Why a probe drops something (``wire/notices.py``); another word is shown as ``other``: a label needs a bound."""

_DROPPED = """
select r.run_id, json_extract_string(e.detail, '$.reason'),
    sum(try_cast(json_extract_string(e.detail, '$.steps') as bigint)),
    sum(try_cast(json_extract_string(e.detail, '$.token_rows') as bigint))
from raw.event_row e join raw.run r on e.run = r.run
where e.kind = 'dropped' and json_valid(e.detail) and r.run_id in (select unnest($runs)) group by all
"""
_WARNINGS = """
select r.run_id, count(*) from raw.event_row e join raw.run r on e.run = r.run
where e.kind = 'warning' and r.run_id in (select unnest($runs)) group by all
"""


@dataclass(slots=True)
class Losses:
    """What a run's probes said that they lost, since the run began.

    Args:
        num_steps, num_token_rows: by reason.
        num_warnings: ``warning`` events: a step that could not be reduced, a batch that was rejected, ...
    """

    num_steps: dict[str, int] = field(default_factory=dict)
    num_token_rows: dict[str, int] = field(default_factory=dict)
    num_warnings: int = 0


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run that has not ended.

    Args:
        is_live: it sent something a moment ago (``runs.LIVE_S``).
        last_seen: when its last batch came, with its zone; None: none came.
        values: signal -> newest value.
    """

    run: str
    is_live: bool
    last_seen: datetime | None
    last_step: int | None
    values: dict[str, float]
    losses: Losses


def losses(cursor: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> dict[str, Losses]:
    """What was lost in each of ``run_ids``, zeros where nothing was."""
    found = {run: Losses(dict.fromkeys(LOST, 0), dict.fromkeys(LOST, 0)) for run in run_ids}
    for run, said, steps, token_rows in cursor.execute(_DROPPED, {"runs": list(run_ids)}).fetchall():
        reason = said if said in LOST else "other"
        for counts, number in ((found[run].num_steps, steps), (found[run].num_token_rows, token_rows)):
            counts[reason] = counts.get(reason, 0) + (number or 0)
    for run, number in cursor.execute(_WARNINGS, {"runs": list(run_ids)}).fetchall():
        found[run].num_warnings = number
    return found
