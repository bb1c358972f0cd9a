"""Where would rules have fired? The engine's own code over a recorded run, with an empty desired state at its start.

What the rules would have changed is not undone in the curves: the run was what it was. Nothing is written.
"""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from entrostat.server.rules import sql
from entrostat.server.rules.actions import Control
from entrostat.server.rules.history import History, Row, SqlValue
from entrostat.server.rules.needs import needs_of
from entrostat.server.rules.state import RuleState
from entrostat.server.rules.stepping import AskSql, step_through
from entrostat.storage.store import Store
from entrostat.wire.errors import QueryError, QueryTimeout
from entrostat.wire.interventions import INTERVENTIONS
from entrostat.wire.messages import DesiredState, Mode, Permissions
from entrostat.wire.rules.rule import AnyRule

MAX_SECONDS = 60.0
ALL_ALLOWED = Permissions(mode=Mode.act, allow=[i.name for i in INTERVENTIONS])
"""A replay asks what the rules wanted; what a run allows is another question."""


def replay(store: Store, run_id: str, rules: Sequence[AnyRule]) -> list[dict[str, Any]]:
    """What ``rules`` would have done in a run, in order: rule, step, kind, message, outcome, values.

    Raises:
        NotFound: no such run.
        QueryTimeout: it took longer than a minute, which only SQL conditions can.
    """
    standing = store.rules.standing(run_id)
    needs = needs_of(rules)
    steps = store.rules.recorded_steps(run_id)
    values = store.rules.step_values(run_id, needs.signals, -1, steps[-1][0]) if steps else {}
    rows = [Row(step, values.get(step, {}) if is_complete else {}) for step, is_complete in steps]
    history = History.of(run_id, rows, standing.num_baseline, needs)
    deadline = time.monotonic() + MAX_SECONDS

    def ask(statement: str, step: int) -> SqlValue:
        if time.monotonic() > deadline:
            raise QueryTimeout(f"the SQL conditions took more than {MAX_SECONDS:g} s up to step {step}: replay without")
        with contextlib.suppress(QueryError):  # unknown, as in a live run
            return sql.value_of(store, statement, run_id, step)
        return None

    chosen = [rule for rule in rules if rule.runs.fits(run_id, standing.tags)]
    return replayed(chosen, history, ask)


def replayed(rules: Sequence[AnyRule], history: History, ask: AskSql) -> list[dict[str, Any]]:
    """The same over a history at hand."""
    states = {rule.name: RuleState() for rule in rules}
    control = Control(DesiredState(), ALL_ALLOWED)
    done = step_through(rules, states, control, history, range(len(history.rows)), ask)
    return [
        {
            "rule": action.rule,
            "step": action.step,
            "kind": action.kind,
            "message": action.message,
            "outcome": action.detail.get("outcome"),
            "values": action.detail.get("values", {}),
        }
        for action in done.actions
    ]
