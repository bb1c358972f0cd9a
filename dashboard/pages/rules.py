"""Rules: write them, see at once what is wrong, see where they would have fired in a run, keep them on the server."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from entrostat.dashboard.figures.lines import View, panel_figure
from entrostat.dashboard.pages import controls
from entrostat.dashboard.pages.control_parts import confirmation, refusal, refused
from entrostat.dashboard.pages.parts import graph, trouble
from entrostat.dashboard.words import Panel, label, number
from entrostat.wire.client import Client
from entrostat.wire.errors import EntrostatError, Refused
from entrostat.wire.rules.pack import pack_text

_POINTS = 600
_SHOWN_FIRINGS = 200
_START = """# When, what, until. Checked while you type.
- name: collapse-guard
  when: {signal: d_collapse, above: 0.25, for_steps: 10}
  do: {intervention: kl_cov, params: {k: 0.002, beta: 1.0}}
  until: {signal: d_collapse, below: 0.15, for_steps: 20}
  cooldown_steps: 50
  mode: advise
"""


def layout(search: str) -> html.Div:
    """The page; the run to replay on as the address says."""
    run = controls.read(search).get("run")
    return html.Div(
        [
            dcc.Interval(id="rules-tick", interval=5000),
            dcc.Store(id="rules-typed", data=_START),
            dcc.Store(id="rules-changed", data=0),
            dcc.Store(id="rules-digest"),
            dcc.Store(id="rules-remove-name"),
            dcc.ConfirmDialog(id="rules-remove-sure"),
            html.Div([_editor(run), _held()], className="with-form"),
        ]
    )


def _editor(run: str | None) -> html.Div:
    return html.Div(
        [
            html.H1("Rules"),
            dcc.Textarea(id="rules-text", value=_START, spellCheck=False, className="rules"),
            html.Div(id="rules-check", role="status"),
            html.Div(
                [
                    html.Button("save", id="rules-save", n_clicks=0, className="button primary"),
                    html.Button("built-in pack", id="rules-pack", n_clicks=0, title="Put the built-in rules here"),
                    html.Label(
                        [
                            "replay on ",
                            dcc.Dropdown([run] if run else [], run, id="rules-run", placeholder="run", clearable=False),
                        ],
                        className="control run-choice",
                    ),
                    html.Button("replay", id="rules-replay", n_clicks=0, disabled=run is None),
                ],
                className="bar",
            ),
            html.Div(id="rules-answer", role="status"),
            dcc.Loading(html.Div(id="rules-replayed"), delay_show=300),
        ],
        className="main",
    )


def _held() -> html.Aside:
    return html.Aside([html.H2("On the server"), html.Div(id="rules-held")], className="card form")


def register(app: Dash, client: Client, url: str) -> None:
    """The page's callbacks."""
    _register_editor(app, client, url)
    _register_held(app, client, url)
    _register_replay(app, client)


def _register_editor(app: Dash, client: Client, url: str) -> None:
    @app.callback(
        Output("rules-check", "children"),
        Input("rules-typed", "data"),
        Input("rules-text", "value"),
    )
    def _check(typed: str | None, given: str | None) -> Any:
        text = (given if ctx.triggered_id == "rules-text" else typed) or ""
        if not text.strip():
            return html.P("No rules yet.", className="quiet")
        try:
            return checked(client.check_rules(text))
        except Refused as error:
            return refused(error)
        except EntrostatError as error:
            return trouble(error, url)

    @app.callback(
        Output("rules-text", "value"),
        Input("rules-pack", "n_clicks"),
        Input({"type": "rule-edit", "name": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    def _load(_: int, __: list[int]) -> Any:
        cause = ctx.triggered_id
        if not ctx.triggered[0]["value"]:
            return no_update
        if cause == "rules-pack":
            return pack_text()
        try:
            held = {rule["name"]: rule["rule"] for rule in client.rules()}
        except EntrostatError:
            return no_update  # the list beside it says what is wrong
        return text_of(held[cause["name"]]) if cause["name"] in held else no_update

    @app.callback(
        Output("rules-answer", "children"),
        Output("rules-changed", "data"),
        Input("rules-save", "n_clicks"),
        State("rules-text", "value"),
        State("rules-changed", "data"),
        prevent_initial_call=True,
    )
    def _save(_: int, given: str | None, changed: int) -> Any:
        saved: list[str] = []
        try:
            answer = client.check_rules(given or "")
            if answer["problems"]:
                return refusal("Nothing was saved: the text has mistakes, named above."), no_update
            for rule in answer["rules"]:
                client.put_rule(rule)
                saved.append(rule["name"])
        except EntrostatError as error:
            said = refused(error) if isinstance(error, Refused) else refusal(f"Not saved: {error}")
            return [said, _saved(saved)], changed + len(saved)
        return _saved(saved), changed + len(saved)


def _saved(names: Sequence[str]) -> html.Div | None:
    return confirmation(f"Saved: {', '.join(names)}.") if names else None


def _register_held(app: Dash, client: Client, url: str) -> None:
    @app.callback(
        Output("rules-held", "children"),
        Output("rules-run", "options"),
        Output("rules-digest", "data"),
        Input("rules-tick", "n_intervals"),
        Input("rules-changed", "data"),
        Input("rules-run", "value"),
        State("rules-digest", "data"),
    )
    def _list(_: int | None, __: int, run: str | None, digest: str | None) -> Any:
        try:
            found = client.rules()
            last = last_firings(client, run) if run else {}
            runs = [r["run"] for r in client.runs(limit=500)]
        except EntrostatError as error:
            return trouble(error, url), no_update, None
        now = json.dumps([found, last, run, runs])
        if now == digest:  # a person may be about to press one of these buttons
            return no_update, no_update, no_update
        made = [_rule(rule, last.get(rule["name"]), run) for rule in found]
        return made or html.P("None yet. Save some.", className="quiet"), runs, now

    @app.callback(
        Output("rules-remove-sure", "displayed"),
        Output("rules-remove-sure", "message"),
        Output("rules-remove-name", "data"),
        Input({"type": "rule-remove", "name": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    def _ask(_: list[int]) -> Any:
        cause = ctx.triggered_id
        if not isinstance(cause, dict) or not ctx.triggered[0]["value"]:
            return False, no_update, no_update
        said = f"Remove the rule {cause['name']}? What it has switched on goes off; its record stays."
        return True, said, cause["name"]

    @app.callback(
        Output("rules-answer", "children", allow_duplicate=True),
        Output("rules-changed", "data", allow_duplicate=True),
        Input("rules-remove-sure", "submit_n_clicks"),
        State("rules-remove-name", "data"),
        State("rules-changed", "data"),
        prevent_initial_call=True,
    )
    def _remove(_: int | None, name: str, changed: int) -> Any:
        try:
            client.delete_rule(name)
        except Refused as error:
            return refused(error), no_update
        except EntrostatError as error:
            return refusal(f"Not removed: {error}"), no_update
        return confirmation(f"Removed: {name}."), changed + 1


def _register_replay(app: Dash, client: Client) -> None:
    @app.callback(Output("rules-replay", "disabled"), Input("rules-run", "value"))
    def _may(run: str | None) -> bool:
        return run is None

    @app.callback(
        Output("rules-replayed", "children"),
        Output("url", "search", allow_duplicate=True),
        Input("rules-replay", "n_clicks"),
        State("rules-text", "value"),
        State("rules-run", "value"),
        prevent_initial_call=True,
    )
    def _replay(clicks: int, text: str | None, run: str | None) -> Any:
        if not clicks or not run:
            return no_update, no_update
        try:
            answer = client.check_rules(text or "")
            if answer["problems"]:
                return refusal("Not replayed: the text has mistakes, named above."), no_update
            firings = client.replay_rules(run, text or "")
            used = {rule["name"]: signals_of(rule) for rule in answer["rules"]}
            names = list(dict.fromkeys(name for signals in used.values() for name in signals))
            asks = {"run": run, "name": names, "points": _POINTS}
            curves = client.get("/v1/series", **asks)["series"] if names else []
        except Refused as error:
            return refused(error), no_update
        except EntrostatError as error:
            return refusal(f"Not replayed: {error}"), no_update
        return replayed(run, firings, used, curves), f"?run={run}"


def checked(answer: Mapping[str, Any]) -> html.Div:
    """What the server says of a text: its mistakes with their places, or the rules it holds."""
    if answer["problems"]:
        found = [html.Li([html.Strong(p["where"]), ": ", p["message"]]) for p in answer["problems"]]
        return html.Div(html.Ul(found), className="banner problems", role="alert")
    names = [f"{rule['name']} ({rule.get('mode', 'advise')})" for rule in answer["rules"]]
    return html.Div(f"No mistakes. {', '.join(names)}", className="quiet", id="rules-fine")


def signals_of(document: Any) -> list[str]:
    """The signals that a rule looks at, in the order in which it names them."""
    if isinstance(document, Mapping):
        own = [document["signal"]] if isinstance(document.get("signal"), str) else []
        found = own + [name for value in document.values() for name in signals_of(value)]
    elif isinstance(document, list):
        found = [name for value in document for name in signals_of(value)]
    else:
        found = []
    return list(dict.fromkeys(found))


def text_of(rule: Mapping[str, Any]) -> str:
    """A rule as a person would write it: YAML, or JSON where PyYAML is not installed."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        return json.dumps([rule], indent=2, ensure_ascii=False)
    written: str = yaml.safe_dump([dict(rule)], sort_keys=False, allow_unicode=True, width=110)
    return written


def last_firings(client: Client, run: str) -> dict[str, int]:
    """Rule -> the last step at which it fired or proposed something in a run."""
    named = run.replace("'", "''")
    rows, _ = client.sql(
        "select json_extract_string(detail, '$.rule') as rule, max(step) as step from event "
        f"where run = '{named}' and kind in ('rule_fired', 'rule_proposed') group by 1"
    )
    return {row["rule"]: row["step"] for row in rows.to_pylist() if row["rule"]}


def replayed(
    run: str,
    firings: Sequence[Mapping[str, Any]],
    used: Mapping[str, Sequence[str]],
    curves: Sequence[Mapping[str, Any]],
) -> list[Any]:
    """Where rules would have fired: a mark on the charts of the signals they look at, and a table."""
    if not firings:
        return [html.P(f"Nothing would have fired in {run}.", className="quiet", id="rules-silent")]
    cards = []
    for name in dict.fromkeys(signal for signals in used.values() for signal in signals):
        marks = [f for f in firings if name in used.get(f["rule"], ())]
        panel = Panel(name, label(name), (name,), name)
        chart = graph({"type": "replayed", "name": name})
        own = [curve for curve in curves if curve["name"] == name and curve["step"]]
        chart.figure = panel_figure(panel, own, View(revision=name), marks)
        cards.append(html.Div([html.Div(html.H3(label(name)), className="card-head"), chart], className="card"))
    rows = [_firing(firing) for firing in firings[:_SHOWN_FIRINGS]]
    heads = html.Thead(html.Tr([html.Th(name) for name in ("rule", "step", "what", "why", "values")]))
    more = len(firings) - len(rows)
    return [
        html.Div(cards, className="grid"),
        html.Div(html.Table([heads, html.Tbody(rows)]), className="wide-table replayed"),
        html.P(f"and {more} more", className="quiet") if more > 0 else None,
    ]


def _firing(firing: Mapping[str, Any]) -> html.Tr:
    values = ", ".join(
        f"{k} {number(v) if isinstance(v, float) else v}" for k, v in (firing.get("values") or {}).items()
    )
    what = str(firing["kind"]).removeprefix("rule_")
    return html.Tr([html.Td(str(cell)) for cell in (firing["rule"], firing["step"], what, firing["message"], values)])


def _rule(held: Mapping[str, Any], last: int | None, run: str | None) -> html.Div:
    name, rule = held["name"], held["rule"]
    fired = f"last fired in {run} at step {last}" if last is not None else f"has not fired in {run}" if run else ""
    buttons = [
        html.Button(text, id={"type": kind, "name": name}, n_clicks=0, **{"aria-label": f"{text} {name}"})
        for text, kind in (("edit", "rule-edit"), ("remove", "rule-remove"))
    ]
    told = [
        html.Strong(name),
        html.Span(rule.get("mode", "advise"), className="tag"),
        html.Div(fired, className="quiet"),
    ]
    return html.Div(
        [html.Div(told, title=str(rule.get("meaning") or "")), html.Div(buttons, className="bar")], className="rule"
    )
