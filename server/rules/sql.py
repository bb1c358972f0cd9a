"""SQL conditions: the run and the step put in as literals, the question guarded as any person's."""

import re

from entrostat.server.rules.history import SqlValue
from entrostat.storage.store import Store
from entrostat.wire.errors import EntrostatError

# Text and comments first: a placeholder inside them is none.
_TOKENS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|\$(?:run|step)\b", re.DOTALL)


def bound(sql: str, run: str, step: int) -> str:
    """``sql`` with ``$run`` and ``$step`` written out."""
    values = {"$run": "'" + run.replace("'", "''") + "'", "$step": str(int(step))}
    return _TOKENS.sub(lambda found: values.get(found[0], found[0]), sql)


def value_of(store: Store, sql: str, run: str, step: int) -> SqlValue:
    """The first value of the answer; None where there is none, or no number or truth.

    Raises:
        QueryForbidden, QueryTimeout, QueryBusy, QueryError: as ``Store.query``.
    """
    answer = store.query(bound(sql, run, step), 1).table
    if answer.num_rows == 0 or answer.num_columns == 0:
        return None
    value = answer.column(0)[0].as_py()
    if isinstance(value, bool):
        return value
    try:
        return None if value is None or isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None


def problem_with(store: Store, sql: str) -> str | None:
    """Why ``sql`` can never be answered; None where it can. It is asked once, of a run that does not exist."""
    try:
        value_of(store, sql, "a-run-that-does-not-exist", 0)
    except EntrostatError as error:
        return str(error)
    return None
