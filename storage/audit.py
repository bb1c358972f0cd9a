"""Who changed what: a line for each change that somebody asked for, in the change's own transaction.

It lies in a table of its own that names the run by its text: when a run is deleted, its events go and its audit stays.
What rules and trainers do by themselves is told by events.
"""

import logging
from dataclasses import dataclass
from typing import Any

import duckdb
from pydantic_core import to_json

from entrostat.storage.streams import utc_now

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class By:
    """Who asked.

    Args:
        who: name of the token; None where the server runs without tokens.
        said: the name that the request gave, which anyone could.
        address: where the request came from.
    """

    who: str | None = None
    said: str | None = None
    address: str | None = None


NOBODY = By()
"""A change by our own code."""


def append(
    cursor: duckdb.DuckDBPyConnection,
    by: By,
    action: str,
    run_id: str | None = None,
    name: str | None = None,
    detail: dict[str, Any] | None = None,
) -> None:
    """Write a line in the transaction of ``cursor``, and to the log.

    Args:
        action: for example ``switch_on``, ``run_deleted``, ``rule_put``, ``token_used``.
        name: the intervention, rule or token that it is about.
        detail: the values behind it.
    """
    text = None if detail is None else to_json(detail, fallback=str, inf_nan_mode="null").decode()
    cursor.execute(
        "insert into raw.audit values (?, ?, ?, ?, ?, ?, ?, ?)",
        [utc_now(), by.who, by.said, by.address, action, run_id, name, text],
    )
    # Values that somebody else chose are shown as Python writes them: no line of the log can be made up.
    _log.info("%s run=%r name=%r who=%r said=%r from %s", action, run_id, name, by.who, by.said, by.address)
