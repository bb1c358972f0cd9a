"""What persons asked of runs and what their trainers answered: each change and its event in one transaction."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import duckdb

from entrostat.storage import audit, desired, effects, runs, server_events
from entrostat.storage.database import Database
from entrostat.storage.permissions import permissions
from entrostat.storage.writer import Writer
from entrostat.wire.messages import DesiredState, Permissions

ASKED = "asked"
"""Kind of the event of a person's change."""


class Asked(NamedTuple):
    """What an event says of a change: one sentence, and the values behind it."""

    message: str
    detail: dict[str, Any]


Change = Callable[[DesiredState], DesiredState]
Tell = Callable[[DesiredState, DesiredState], Asked]


class ControlBook:
    """The part of a store that persons change runs through.

    Args:
        remember: called with a run's name after what should be on in it was committed.
    """

    def __init__(self, database: Database, writer: Writer, remember: Callable[[str], None]) -> None:
        self._database, self._writer, self._remember = database, writer, remember

    def allowed_in(self, run_id: str) -> tuple[Permissions, int | None]:
        """What the user of a run allowed, and its last step. Raises NotFound."""
        with self._database.reading() as cursor:
            key = runs.key_of(cursor, run_id)
            return permissions(cursor, key), runs.last_step(cursor, key)

    def change(
        self,
        run_id: str,
        change: Change,
        tell: Tell,
        expected_version: int | None = None,
        by: audit.By = audit.NOBODY,
    ) -> DesiredState:
        """As ``Store.change_desired``, with an event of what ``tell`` makes of the states before and after.

        The audit has it too, in the name of ``by``.

        An equal state is not written, and nothing is told of it.

        Raises:
            NotFound: no such run.
            Conflict: ``expected_version`` is given and is not the newest.
            Whatever ``change`` raises: nothing is written then.
        """

        def write(cursor: duckdb.DuckDBPyConnection) -> DesiredState:
            key, before = desired.held(cursor, run_id, expected_version)
            after = change(before)
            if after == before:
                return before
            written = desired.append(cursor, key, after, before.version + 1)
            asked = tell(before, written)
            server_events.append(cursor, key, runs.last_step(cursor, key), ASKED, asked.message, asked.detail)
            action, name = str(asked.detail.get("action", ASKED)), asked.detail.get("name")
            audit.append(cursor, by, action, run_id, name, asked.detail)
            return written

        written = self._writer.do(write)
        self._remember(run_id)
        return written

    def told(self, run_id: str) -> list[effects.Told]:
        """What the trainer said it did, in order. Raises NotFound."""
        with self._database.reading() as cursor:
            return effects.told(cursor, run_id)

    def effects(self, run_id: str, signals: Sequence[str], window: int) -> list[dict[str, Any]]:
        """See ``effects.effects``. Raises NotFound."""
        with self._database.reading() as cursor:
            return effects.effects(cursor, run_id, signals, window)
