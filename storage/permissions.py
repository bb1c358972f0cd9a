"""What the user of a run allowed, as its trainer said it last."""

import json

import duckdb

from entrostat.wire.messages import Permissions

_NEWEST = """
select settings from raw.stream where run = ? and producer = 'trainer' order by started desc, rank limit 1
"""


def permissions(cursor: duckdb.DuckDBPyConnection, run: int) -> Permissions:
    """The permissions of the newest session of the trainer, of its lowest rank: a resumed one may allow something else.

    A run whose probe did not say any only observes.

    Args:
        run: the run's surrogate key.
    """
    rows = cursor.execute(_NEWEST, [run]).fetchall()
    said = json.loads(rows[0][0]).get("permissions") if rows else None
    try:
        return Permissions.model_validate(said)
    except ValueError:
        return Permissions()
