"""``Store.rules``: rules written and read, how far each has come, and what they did, once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb

from entrostat.storage import audit, desired, rules, server_events
from entrostat.storage.baseline import DEFAULT_STEPS
from entrostat.storage.database import Database
from entrostat.storage.rules import HeldRule, HeldState, Standing
from entrostat.storage.runs import key_of
from entrostat.storage.writer import Writer
from entrostat.wire.errors import NotFound
from entrostat.wire.messages import DesiredState


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """An event to be written with a change."""

    step: int | None
    kind: str
    message: str
    detail: dict[str, Any]


class RuleBook:
    """All methods may be called from any thread.

    Args:
        remember: called with a run's name after what should be on in it was committed.
    """

    def __init__(self, database: Database, writer: Writer, remember: Callable[[str], None]) -> None:
        self._database, self._writer, self._remember = database, writer, remember

    def held(self) -> list[HeldRule]:
        """The rules, by name."""
        with self._database.reading() as cursor:
            return rules.held(cursor)

    def put(self, documents: dict[str, dict[str, Any]], by: audit.By = audit.NOBODY) -> list[HeldRule]:
        """Write rules, all in one transaction, each as the next version of its name; an equal one stays as it is."""

        def write(cursor: duckdb.DuckDBPyConnection) -> list[HeldRule]:
            known = {rule.name: rule for rule in rules.held(cursor)}
            made = []
            for name, one in documents.items():
                if name in known and known[name].document == one:
                    made.append(known[name])
                    continue
                made.append(rules.append(cursor, name, one))
                audit.append(cursor, by, "rule_put", None, name, {"version": made[-1].version, "rule": one})
            return made

        return self._writer.do(write)

    def remove(self, name: str, by: audit.By = audit.NOBODY) -> None:
        """Remove a rule; its versions are kept. Raises NotFound."""

        def write(cursor: duckdb.DuckDBPyConnection) -> None:
            known = [rule.name for rule in rules.held(cursor)]
            if name not in known:
                raise NotFound(f"no rule {name!r}: there are {', '.join(known) or 'none'}")
            rules.append(cursor, name, None)
            audit.append(cursor, by, "rule_removed", None, name)

        self._writer.do(write)

    def runs(self) -> list[str]:
        """Names of the runs in which a rule has come anywhere."""
        with self._database.reading() as cursor:
            return rules.runs_with_states(cursor)

    def standing(self, run_id: str) -> Standing:
        """What the rules have to know of a run beside its curves. Raises NotFound."""
        with self._database.reading() as cursor:
            return rules.standing(cursor, key_of(cursor, run_id), DEFAULT_STEPS)

    def recorded_steps(self, run_id: str, after: int = -1) -> list[tuple[int, bool]]:
        """(step, whether it is complete), ascending, of the trainer's steps beyond ``after``."""
        with self._database.reading() as cursor:
            return rules.recorded_steps(cursor, run_id, after)

    def step_at(self, run_id: str, moment: datetime) -> int:
        """The highest step of which something had arrived at ``moment`` (UTC, without a zone); -1: none."""
        with self._database.reading() as cursor:
            return rules.step_at(cursor, run_id, moment)

    def step_values(self, run_id: str, names: Sequence[str], after: int, to: int) -> dict[int, dict[str, float]]:
        """Step -> signal -> value, of the steps beyond ``after`` up to ``to``."""
        with self._database.reading() as cursor:
            return rules.step_values(cursor, run_id, names, after, to)

    def commit(
        self,
        run_id: str,
        expected_version: int,
        wanted: DesiredState,
        states: Sequence[HeldState],
        events: Sequence[ServerEvent],
    ) -> None:
        """What the rules did at some steps: desired state, their own states and the events, in one transaction.

        Raises:
            NotFound: no such run.
            Conflict: the desired state is no longer of ``expected_version``; nothing is written.
        """

        def write(cursor: duckdb.DuckDBPyConnection) -> None:
            key, newest = desired.held(cursor, run_id, expected_version)
            rules.write_states(cursor, key, states)
            for event in events:
                server_events.append(cursor, key, event.step, event.kind, event.message, event.detail)
            if wanted != newest:
                desired.append(cursor, key, wanted, newest.version + 1)

        self._writer.do(write)
        self._remember(run_id)
