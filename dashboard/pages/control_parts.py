"""Pieces of the control page: pure functions from what the server said to what a person reads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dash import html

from entrostat.dashboard.figures.marks import params_text
from entrostat.dashboard.login import visitor
from entrostat.dashboard.pages.control_state import EFFECT_WINDOW, Shown
from entrostat.dashboard.pages.parts import age, status
from entrostat.dashboard.standing import Line
from entrostat.dashboard.words import label, number
from entrostat.wire.errors import EntrostatError, Refused
from entrostat.wire.messages import Mode, Proposal

_STATES = {
    "on": "on",
    "asked": "asked for, not acknowledged yet",
    "changing": "change asked for, not acknowledged yet",
    "ending": "asked to be off, still in force",
    "refused": "refused by the trainer",
    "over": "its last step has passed",
}
_MODES = {
    Mode.observe: "observe: nothing is ever applied",
    Mode.advise: "advise: rules propose, persons approve",
    Mode.act: "act: rules and persons",
}
_MORE_TOKEN = (
    "Start the dashboard with ENTROSTAT_TOKEN set to one that may: "
    "entrostat token add NAME --scope read --scope control --tokens FILE"
)

_OTHER_TOKEN = "Sign out, and in again with a token that may (scope control)"


def refusal(text: str) -> html.Div:
    """What was not done, and why."""
    return html.Div(text, className="banner", role="alert")


def confirmation(text: str) -> html.Div:
    """What was done."""
    return html.Div(text, className="banner good")


def refused(error: Refused) -> html.Div:
    """The server's no in its own words; where a token is missing, how to get one."""
    if error.status in (401, 403) and error.code in ("no_token", "unknown_token", "missing_scope"):
        if (person := visitor()) is not None:
            return refusal(f"{person.name} may not do this: {error.message}. {_OTHER_TOKEN}")
        return refusal(f"This dashboard's token may not control runs: {error.message}. {_MORE_TOKEN}")
    return refusal(error.message)


def tried(action: Callable[[], object]) -> html.Div | None:
    """Do it; where the server did not take it, its own words."""
    try:
        action()
    except Refused as error:
        return refused(error)
    except EntrostatError as error:
        return refusal(f"Nothing was changed: {error}")
    return None


def status_line(shown: Shown) -> list[Any]:
    """Mode, armed or stopped, what is wanted and what is in force, and when the trainer was last heard."""
    detail, desired = shown.detail, shown.desired
    mode = "permissions unknown" if shown.permissions is None else _MODES[shown.permissions.mode]
    armed = html.Span("armed") if desired.is_armed else html.Strong("stopped", className="bad")
    waiting = sum(line.state in ("asked", "changing", "ending") for line in shown.lines)
    on = sum(line.held is not None for line in shown.lines)
    acknowledged = f", {waiting} not acknowledged yet" if waiting else ""
    step = "no step yet" if detail["last_step"] is None else f"step {detail['last_step']}"
    told = f" · {step} · {age(detail['last_seen'])} · {mode} · "
    return [status(detail["status"]), told, armed, f" · {on} in force{acknowledged}"]


def notice(shown: Shown) -> html.Div | None:
    """What stands in the way of control, where something does."""
    said = []
    if shown.detail["status"] == "silent":
        said.append(
            f"The trainer has not been heard of for {age(shown.detail['last_seen']).removesuffix(' ago')}: what is "
            "asked for now waits until it answers."
        )
    if shown.detail["status"] == "ended":
        said.append("The run has ended: nothing here has an effect any more, unless it is resumed.")
    if shown.permissions is not None and shown.permissions.mode == Mode.observe:
        said.append("This run observes only: attach with mode='advise' or mode='act' to control it.")
    return html.Div(" ".join(said), className="banner", role="status") if said else None


def proposals(shown: Shown) -> list[Any]:
    """What rules propose, each with the values behind it and its buttons."""
    if not shown.desired.proposals:
        return []
    cards = [_proposal(p, shown.evidence.get(p.proposal_id, {})) for p in shown.desired.proposals]
    return [html.H2("Proposed"), *cards]


def table(shown: Shown) -> list[Any]:
    """What is on, or should be."""
    head = html.H2("What is on")
    if not shown.lines:
        return [head, html.P("Nothing is on, and nothing is asked for.", className="quiet")]
    names = ("intervention", "state", "since step", "parameters", "by", "because", "")
    rows = [_row(line) for line in shown.lines]
    return [head, _wide(html.Table([_head(names), html.Tbody(rows)]))]


def effects_table(effects: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Signals before, while and after something was in force; newest first."""
    rows = [row for effect in reversed(effects) for row in _effect_rows(effect)]
    if not rows:
        return []
    about = (
        f"Means ± standard error (number of steps) over the {EFFECT_WINDOW} steps before it came into force, all steps "
        f"it was, and the {EFFECT_WINDOW} after. Differences, not causes: what would have been without is not known."
    )
    numbers = ("before", "while on", "after", "on − before", "after − before")
    heads = [html.Th("intervention"), html.Th("signal"), *(html.Th(name, className="number") for name in numbers)]
    table = html.Table([html.Thead(html.Tr(heads)), html.Tbody(rows)], className="effects")
    return [html.H2("Before and after"), html.P(about, className="quiet"), _wide(table)]


def _proposal(proposal: Proposal, values: Mapping[str, Any]) -> html.Div:
    wanted, identity = proposal.intervention, proposal.proposal_id
    seen = [html.Span(f"{label(name)} {_value(value)}", className="tag number") for name, value in values.items()]
    buttons = [
        _button("approve", {"type": "approve", "proposal": identity}, f"approve {wanted.name}", "button primary"),
        _button("change, then approve", {"type": "edit", "proposal": identity}, f"change {wanted.name}, then approve"),
        _button("dismiss", {"type": "dismiss", "proposal": identity}, f"dismiss {wanted.name}"),
    ]
    author = wanted.by.partition(":")[2]
    told = [html.Strong(wanted.name), " ", html.Span(params_text(wanted.params), className="number")]
    return html.Div(
        [
            html.Div([*told, html.Span(f" proposed by {author} at step {proposal.step}", className="quiet")]),
            html.P(wanted.because),
            html.Div(seen) if seen else None,
            html.Div(buttons, className="bar"),
        ],
        className="card proposal",
    )


def _row(line: Line) -> html.Tr:
    state = [html.Span(className=f"dot {'live' if line.state == 'on' else line.state}"), _STATES[line.state]]
    if line.note:
        state.append(f": {line.note}")
    wanted = params_text(line.params) or "the paper's values"
    if line.state == "changing" and line.held is not None:
        wanted = f"{wanted} (in force: {params_text(line.held.params) or 'the paper’s values'})"
    until = line.wanted.until_step if line.wanted else None
    over = line.wanted is not None and line.wanted.selection == "step"
    told = f"{wanted}{', over the whole step' if over else ''}{f', to step {until}' if until is not None else ''}"
    buttons = [
        _button("change", {"type": "change", "name": line.name}, f"change {line.name}"),
        _button("switch off", {"type": "off", "name": line.name}, f"switch {line.name} off"),
    ]
    cells = [line.name, state, "–" if line.since is None else line.since, told, line.by.replace(":", " ", 1)]
    shown = [html.Td(cell) for cell in [*cells, line.because]]
    return html.Tr([*shown, html.Td(buttons if line.wanted else None, className="buttons")])


def _effect_rows(effect: Mapping[str, Any]) -> list[html.Tr]:
    known = [s for s in effect["signals"] if s["before"]["num_steps"] or s["on"]["num_steps"]]
    rows = []
    for index, signal in enumerate(known):
        cells = [_mean(signal[part]) for part in ("before", "on", "after")]
        cells += [_difference(signal[part]) for part in ("on_minus_before", "after_minus_before")]
        shown = [html.Td(label(signal["signal"])), *(html.Td(cell, className="number") for cell in cells)]
        head = [html.Td(_effect_head(effect), rowSpan=len(known), className="effect-head")] if index == 0 else []
        rows.append(html.Tr([*head, *shown]))
    return rows


def _effect_head(effect: Mapping[str, Any]) -> list[Any]:
    until = "still on" if effect["end"] is None else f"to step {effect['end']}"
    beside = [f"together with {', '.join(effect['also_on'])}"] if effect["also_on"] else []
    changed = [f"changed at {len(effect['changes'])} steps"] if effect["changes"] else []
    told = [params_text(effect["params"]), f"from step {effect['start']} {until}", *changed, *beside, effect["because"]]
    return [html.Strong(effect["name"]), *(html.Div(line, className="quiet") for line in told if line)]


def _mean(part: Mapping[str, Any]) -> str:
    if part["mean"] is None:
        return "–"
    spread = "" if part["se"] is None else f" ± {part['se']:.2g}"
    return f"{number(part['mean'])}{spread} ({part['num_steps']})"


def _difference(part: Mapping[str, Any]) -> str:
    if part["value"] is None:
        return "–"
    spread = "" if part["se"] is None else f" ± {part['se']:.2g}"
    return f"{part['value']:+.3g}{spread}"


def _value(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _head(names: Sequence[str]) -> html.Thead:
    return html.Thead(html.Tr([html.Th(name) for name in names]))


def _wide(table: html.Table) -> html.Div:
    return html.Div(table, className="wide-table")


def _button(text: str, identity: dict[str, str], told: str, look: str = "button") -> html.Button:
    return html.Button(text, id=identity, n_clicks=0, className=look, **{"aria-label": told})
