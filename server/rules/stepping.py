"""All rules of a run over its steps, in order: the same for the live engine and for a replay."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from entrostat.server.rules.actions import Action, Control, applied
from entrostat.server.rules.history import Facts, History, SqlValue
from entrostat.server.rules.lifecycle import evaluate
from entrostat.server.rules.needs import needs_of
from entrostat.server.rules.state import RuleState
from entrostat.wire.rules.rule import AnyRule

AskSql = Callable[[str, int], SqlValue]
"""(statement, step) -> its value."""


@dataclass(slots=True)
class Stepped:
    """What came of some steps."""

    states: dict[str, RuleState]
    control: Control
    actions: list[Action] = field(default_factory=list)


def step_through(
    rules: Sequence[AnyRule],
    states: Mapping[str, RuleState],
    control: Control,
    history: History,
    indices: Iterable[int],
    ask: AskSql,
    acts_from: int | None = None,
) -> Stepped:
    """Evaluate ``rules`` at ``history.rows[i]`` for each of ``indices``, ascending.

    A rule that has come further already is left out at a step: none is evaluated twice.

    Args:
        states: of every one of ``rules``.
        acts_from: see ``Facts``; None: a change acts at its own step.
    """
    result = Stepped(dict(states), control)
    statements = {rule.name: needs_of([rule]).sql for rule in rules}
    for index in indices:
        step = history.rows[index].step
        due = [rule for rule in rules if result.states[rule.name].step < step]
        if not due:
            continue
        wanted = dict.fromkeys(text for rule in due for text in statements[rule.name])
        facts = history.at(index, {text: ask(text, step) for text in wanted}, acts_from)
        for rule in due:
            _evaluate_one(rule, facts, result)
    return result


def _evaluate_one(rule: AnyRule, facts: Facts, result: Stepped) -> None:
    result.states[rule.name], actions = evaluate(rule, result.states[rule.name], facts, result.control)
    result.actions += actions
    result.control = Control(applied(result.control.desired, actions), result.control.permissions)
