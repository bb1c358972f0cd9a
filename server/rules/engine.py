"""The rules of the server, on a thread of their own: a commit only says that a run has news, ingest never waits.

A step is evaluated once: when all ranks have sent something of it, after every step before it. A step that stays
incomplete while ``PATIENCE_STEPS`` later ones are complete is passed over, with all its signals unknown. What the rules
do at some steps and how far they have come is one transaction: after a crash the engine goes on where that left off.
"""

import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from entrostat.server.rules import sql
from entrostat.server.rules.actions import Action, Control, applied
from entrostat.server.rules.history import History, Row, SqlValue
from entrostat.server.rules.lifecycle import dropped
from entrostat.server.rules.needs import Needs, needs_of
from entrostat.server.rules.state import RuleState
from entrostat.server.rules.stepping import AskSql, Stepped, step_through
from entrostat.storage.rule_book import ServerEvent
from entrostat.storage.rules import HeldRule, HeldState, Standing
from entrostat.storage.store import Store
from entrostat.storage.writer import Commit
from entrostat.wire.errors import Conflict, EntrostatError, NotFound
from entrostat.wire.rules.rule import AnyRule, read_rule

PATIENCE_STEPS = 20
"""So many later steps are complete before an incomplete one is passed over."""
MOST_AHEAD_STEPS = 100
"""The trainer is not taken to be further ahead of what has arrived, even where a server was away for an hour."""
STEPS_AT_ONCE = 64
"""Steps whose outcome is one transaction, where many are due: a spool was pushed, or the server was away."""
MAX_REMEMBERED = 20
"""Runs whose rows are kept in memory."""
MAX_WARNINGS = 100
"""Each is logged once; no more than this."""
STARTED_WITH = 200
"""Newest runs that are looked at when the server starts."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Memory:
    """The rows of a run that were read, and what they were read for."""

    needs: Needs
    created: datetime
    num_resumes: int
    rows: list[Row] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.rows[-1].step if self.rows else -1


@dataclass(frozen=True, slots=True)
class _Due:
    """The rules of a run as they stand before the steps that are due."""

    rules: list[AnyRule]
    versions: dict[str, int]
    states: dict[str, RuleState]
    gone: list[Action]
    is_changed: bool


class Engine:
    """Evaluates rules. ``start`` and ``close`` the thread, or call ``advance`` by hand.

    Args:
        store: closed by who made it, after ``close``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._memories: OrderedDict[str, _Memory] = OrderedDict()
        self._waiting: set[str] = set()
        self._changed = threading.Condition()
        self._is_closing = False
        self._warned: set[str] = set()
        self._thread: threading.Thread | None = None

    def committed(self, commit: Commit) -> None:
        """A listener of commits: quick, and never raises."""
        self.look_at(commit.runs)

    def look_at(self, runs: Iterable[str]) -> None:
        """Evaluate what is due in ``runs``, soon."""
        with self._changed:
            self._waiting.update(runs)
            self._changed.notify()

    def rules_changed(self) -> None:
        """Let what a removed or changed rule has on be taken back, soon."""
        self.look_at(self._store.rules.runs())

    def start(self) -> None:
        """Start the thread; first it looks at the newest runs, for what was left off."""
        self._thread = threading.Thread(target=self._work, name="entrostat-rules", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the transaction that is under way."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        self._try(lambda: self.look_at(self._left_off()), "the newest runs")
        while True:
            with self._changed:
                while not self._waiting and not self._is_closing:
                    self._changed.wait()
                if self._is_closing:
                    return
                run = self._waiting.pop()
            if not self._try(functools.partial(self.advance, run), f"run {run}"):
                self._memories.pop(run, None)

    def _left_off(self) -> list[str]:
        return [run["run"] for run in self._store.runs(limit=STARTED_WITH)] if self._store.rules.held() else []

    @staticmethod
    def _try(work: Callable[[], None], what: str) -> bool:
        try:
            work()
        except NotFound:
            return False  # deleted meanwhile
        except Exception:  # noqa: BLE001 one run's trouble must not end the rules of the others
            _log.exception("the rules of %s could not be evaluated; they are tried again at the next commit", what)
            return False
        return True

    def advance(self, run: str) -> None:
        """Evaluate every step of ``run`` that is due. Raises NotFound."""
        while not self._is_closing and self._advance_some(run):
            pass

    def _advance_some(self, run: str) -> bool:
        """At most ``STEPS_AT_ONCE`` steps; whether there may be more."""
        standing = self._store.rules.standing(run)
        held = self._store.rules.held()
        if not held and not standing.states:
            return False
        desired = self._store.desired(run)
        due = self._due(run, standing, held)
        memory = self._remembered(run, due.rules, standing)
        if due.rules:
            self._read_on(run, memory, due)
        first = min((state.step for state in due.states.values()), default=memory.last)
        indices = [i for i, row in enumerate(memory.rows) if row.step > first][:STEPS_AT_ONCE]
        if not indices and not due.is_changed:
            return False
        control = Control(applied(desired, due.gone), standing.permissions)
        history = History.of(run, memory.rows, standing.num_baseline, memory.needs)
        acts_from = expected_to_act(first, memory.last)
        done = step_through(due.rules, due.states, control, history, indices, self._ask(run), acts_from)
        is_done = self._commit(run, desired.version, due, done)
        return not is_done or len(indices) == STEPS_AT_ONCE

    def _ask(self, run: str) -> AskSql:
        def ask(statement: str, step: int) -> SqlValue:
            try:
                return sql.value_of(self._store, statement, run, step)
            except EntrostatError as error:
                self._warn_once(f"a rule's question has no answer and counts as unknown: {error} ({statement[:200]})")
                return None

        return ask

    def _warn_once(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(text)
            _log.warning("%s", text)

    def _read(self, held: HeldRule) -> AnyRule | None:
        try:
            return read_rule(held.document)
        except ValueError as error:
            self._warn_once(f"rule {held.name} version {held.version} is not understood and rests: {error}")
            return None

    def _commit(self, run: str, version: int, due: _Due, done: Stepped) -> bool:
        """Whether it is written; not where a person was faster, and it has to be evaluated with what they want."""
        states = [
            HeldState(name, due.versions[name], state.step, state.model_dump_json())
            for name, state in done.states.items()
        ]
        events = [
            ServerEvent(action.step if action.step >= 0 else None, action.kind, action.message, action.detail)
            for action in (*due.gone, *done.actions)
        ]
        try:
            self._store.rules.commit(run, version, done.control.desired, states, events)
        except Conflict:
            return False
        return True

    def _due(self, run: str, standing: Standing, held: Sequence[HeldRule]) -> _Due:
        rules: list[AnyRule] = []
        states: dict[str, RuleState] = {}
        versions: dict[str, int] = {}
        gone: list[Action] = []
        kept = {name: _state_of(one) for name, one in standing.states.items()}
        for one in held:
            rule = self._read(one)
            if rule is None or not rule.runs.fits(run, standing.tags):
                continue
            before = kept.pop(one.name, None)
            state = self._new_state(run, one, standing) if before is None else before
            if before is not None and standing.states[one.name].version != one.version:
                gone += dropped(one.name, before, before.step, "the rule was changed")
                state = RuleState(step=before.step, ended=before.step, num_resumes=before.num_resumes)
            if state.num_resumes < len(standing.resumes):
                state = state.rewound(min(standing.resumes[state.num_resumes :]), len(standing.resumes))
            rules.append(rule)
            states[one.name], versions[one.name] = state, one.version
        for name, state in kept.items():
            gone += dropped(name, state, state.step, "the rule was removed")
        is_changed = bool(gone) or bool(kept)
        return _Due(rules, versions, states, gone, is_changed)

    def _new_state(self, run: str, rule: HeldRule, standing: Standing) -> RuleState:
        """A rule begins with the first step that came after it."""
        return RuleState(step=self._store.rules.step_at(run, rule.updated), num_resumes=len(standing.resumes))

    def _remembered(self, run: str, rules: Sequence[AnyRule], standing: Standing) -> _Memory:
        fresh = _Memory(needs_of(rules), standing.created, len(standing.resumes))
        memory = self._memories.pop(run, fresh)
        if (memory.needs, memory.created, memory.num_resumes) != (fresh.needs, fresh.created, fresh.num_resumes):
            memory = fresh
        self._memories[run] = memory
        while len(self._memories) > MAX_REMEMBERED:
            self._memories.popitem(last=False)
        return memory

    def _read_on(self, run: str, memory: _Memory, due: _Due) -> None:
        """Take the steps into memory that are ready to be evaluated."""
        first = min((state.step for state in due.states.values()), default=-1)
        if not memory.rows and not self._store.rules.recorded_steps(run, first):
            return  # nothing is due: spare the run's whole history
        ready = ready_steps(self._store.rules.recorded_steps(run, memory.last))
        if not ready:
            return
        values = self._store.rules.step_values(run, memory.needs.signals, memory.last, ready[-1][0])
        memory.rows += [Row(step, values.get(step, {}) if is_complete else {}) for step, is_complete in ready]


def expected_to_act(evaluated: int, newest: int) -> int:
    """From which step a change made now can be expected to act in the trainer.

    The steps that arrived together are how far the trainer gets between two answers: it has done as many again by now,
    and the change is in the answer to those.

    Args:
        evaluated: the last step of the turn before.
        newest: the last step that has arrived.
    """
    return newest + min(2 * max(1, newest - max(evaluated, 0)), MOST_AHEAD_STEPS)


def ready_steps(steps: Sequence[tuple[int, bool]]) -> list[tuple[int, bool]]:
    """The beginning of ``steps`` (step, whether it is complete) that need not wait for anything before it."""
    complete_after = sum(is_complete for _, is_complete in steps)
    ready: list[tuple[int, bool]] = []
    for step, is_complete in steps:
        complete_after -= is_complete
        if not is_complete and complete_after < PATIENCE_STEPS:
            break
        ready.append((step, is_complete))
    return ready


def _state_of(held: HeldState) -> RuleState:
    try:
        return RuleState.model_validate_json(held.document)
    except (ValueError, EntrostatError):
        return RuleState(step=held.step)  # of a newer entrostat: its memory is lost, its place is not
