"""The page of one run, live: all charts on one x axis, one zoom; nothing is redrawn while a person looks."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dash import ALL, Dash, Input, Output, Patch, State, ctx, dcc, html, no_update

from entrostat.dashboard import spans as record
from entrostat.dashboard.figures.axis import placed
from entrostat.dashboard.figures.heat import histogram_figure
from entrostat.dashboard.figures.lines import View, panel_figure
from entrostat.dashboard.figures.positions import positions_figure
from entrostat.dashboard.figures.timeline import timeline_figure, timeline_height
from entrostat.dashboard.pages import controls
from entrostat.dashboard.pages.parts import POLL_MS, age, facts, flat, graph, pace_ms, removed, status, trouble
from entrostat.dashboard.spans import Span, spans_of
from entrostat.dashboard.words import PANELS, RUN_PAGE_SIGNALS, Panel, absent_panels, findings, meaning, number, unit
from entrostat.wire.client import Client
from entrostat.wire.errors import EntrostatError
from entrostat.wire.signals import PROFILES, USER_PREFIX

_POINTS = 600
_HEAT = "heat"
_TIMELINE = "timeline"
# Every chart also tells when it was resized, all of them one after the other: a zoom in between must not be lost.
_ZOOM = """
function(_) {
    const isZoom = (said) => said && (said["xaxis.autorange"] || "xaxis.range[0]" in said);
    const zooms = dash_clientside.callback_context.triggered.map((one) => one.value).filter(isZoom);
    return zooms.length ? zooms[0] : dash_clientside.no_update;
}
"""


def layout(run: str, search: str) -> html.Div:
    """The page, before the first answer; the controls as the address says."""
    state = controls.read(search)
    return html.Div(
        [
            dcc.Interval(id="run-tick", interval=POLL_MS),
            dcc.Store(id="run-name", data=run),
            dcc.Store(id="run-zoom"),
            dcc.Store(id="run-window", data=controls.window_of(state)),
            dcc.Store(id="run-signals"),
            html.Div(
                [
                    html.H1(run),
                    html.Div(id="run-status", className="quiet"),
                    dcc.Link("control", href=f"/run/{run}/control", className="button"),
                ],
                className="head",
            ),
            controls.bar("run", state),
            html.Div(id="run-trouble"),
            html.Div(id="run-findings", className="findings"),
            _timeline_card(),
            html.Div([_card(panel) for panel in PANELS] + [_heat_card(), _positions_card()], className="grid"),
            html.Details(
                [html.Summary("What the trainer logs itself"), html.Div(id="run-own", className="grid")],
                id="run-own-open",
                open=False,
            ),
            html.Details(
                [html.Summary("Charts without a value in this run"), html.Div(id="run-absent")],
                id="run-absent-open",
                open=False,
                hidden=True,
            ),
            html.Details([html.Summary("Settings, versions, events"), html.Div(id="run-facts")], open=False),
        ]
    )


def _card(panel: Panel) -> html.Div:
    head = html.Div(
        [
            html.H3(panel.title, title=meaning(panel)),
            html.Span(id={"type": "last", "panel": panel.key}, className="last number"),
        ],
        className="card-head",
    )
    return html.Div([head, graph({"type": "chart", "panel": panel.key})], className="card", id=f"card-{panel.key}")


def _timeline_card() -> html.Div:
    title = "What was in force, from which step to which. Hover: parameters, who, why. A cross: the trainer refused."
    head = html.Div(html.H3("Interventions", title=title), className="card-head")
    # Hidden until there is something to show.
    return html.Div(
        [head, graph({"type": "chart", "panel": _TIMELINE})], className="card", id="card-timeline", hidden=True
    )


def _heat_card() -> html.Div:
    title = "Share of tokens by entropy; dotted: h*, above which tokens count as forking."
    head = html.Div(html.H3("Entropy of tokens, distribution", title=title), className="card-head")
    return html.Div([head, graph({"type": "chart", "panel": _HEAT})], className="card", id="card-heat")


def _positions_card() -> html.Div:
    title = "\n".join(f"{s.meaning} ({s.source})" for s in PROFILES)
    head = html.Div(html.H3("Entropy by position, latest step", title=title), className="card-head")
    # Not one of the charts over steps: those share their zoom.
    return html.Div([head, graph("run-positions")], className="card", id="card-positions")


@dataclass(frozen=True, slots=True)
class _Fetched:
    detail: dict[str, Any]
    curves: list[dict[str, Any]]
    events: list[dict[str, Any]]
    heat: dict[str, Any]
    tokens: dict[int, float] | None
    positions: list[dict[str, Any]]
    analysis: dict[str, Any]
    marked: list[dict[str, Any]]
    spans: list[Span]


def _fetch(client: Client, run: str, view: View) -> _Fetched:
    """Everything the charts need, thinned for the window on screen, a question a kind of chart."""
    limits: dict[str, Any] = {"points": _POINTS}
    if view.window and view.x == "step":
        limits |= {"from_step": max(0, int(view.window[0])), "to_step": int(view.window[1]) + 1}
    detail = client.run(run)
    names = [n for n in RUN_PAGE_SIGNALS if n in set(detail["names"])]
    curves = client.get("/v1/series", run=run, name=names, **limits)["series"] if names else []
    tokens = _tokens_so_far(client, run, limits) if view.x == "tokens" else None
    heat = client.get(f"/v1/runs/{run}/histogram", name="entropy", **(limits | {"points": 150}))
    events = client.get(f"/v1/runs/{run}/events", limit=200)["events"]
    positions = _positions(client, run, detail["last_step"])
    marked = record.fetched(client, run)
    analysis = client.analysis(run)
    return _Fetched(detail, curves, events, heat, tokens, positions, analysis, marked, spans_of(marked))


def _positions(client: Client, run: str, step: int | None) -> list[dict[str, Any]]:
    """Rows of the view ``profile`` of one step."""
    if step is None:
        return []
    named = run.replace("'", "''")
    rows, _ = client.sql(f"select name, low, high, mean from profile where run = '{named}' and step = {int(step)}")
    return list(rows.to_pylist())


def _tokens_so_far(client: Client, run: str, limits: Mapping[str, Any]) -> dict[int, float]:
    """Step -> response tokens up to and including it, at the steps on screen."""
    curve = client.get("/v1/series", run=run, name=["num_tokens"], **limits)["series"]
    total, so_far = 0.0, {}
    for entry in curve:
        for step, value in zip(entry["step"], entry["value"], strict=True):
            total += (value or 0.0) * entry["bucket_steps"]
            so_far[step] = total
    return so_far


def register(app: Dash, client: Client, url: str) -> None:
    """The page's callbacks."""
    app.clientside_callback(
        _ZOOM,
        Output("run-zoom", "data"),
        Input({"type": "chart", "panel": ALL}, "relayoutData"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("run-window", "data"),
        Output("url", "search"),
        Input("run-zoom", "data"),
        Input("run-reset", "n_clicks"),
        Input("run-x", "value"),
        Input("run-smooth", "value"),
        Input("run-log", "value"),
        State("run-window", "data"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def _window(
        zoom: dict[str, Any] | None,
        resets: int,
        x: str,
        smooth: float,
        log: list[str],
        window: list[float] | None,
        search: str,
    ) -> Any:
        cause = ctx.triggered_id
        # A page that has just been opened triggers this too: only a change undoes the zoom of its address.
        if (cause == "run-reset" and resets) or x != controls.read(search).get("x", "step"):
            window = None
        elif cause == "run-zoom":
            asked = controls.zoomed(zoom)
            if asked == "same":
                return no_update, no_update
            window = asked if isinstance(asked, list) else None
        return window, controls.written(x, smooth, log, window)

    @app.callback(
        Output({"type": "chart", "panel": ALL}, "figure"),
        Output({"type": "last", "panel": ALL}, "children"),
        Output("run-status", "children"),
        Output("run-trouble", "children"),
        Output("run-facts", "children"),
        Output("run-tick", "interval"),
        Output("run-findings", "children"),
        Output("run-positions", "figure"),
        Output("card-timeline", "hidden"),
        Output({"type": "chart", "panel": _TIMELINE}, "style"),
        Output("run-signals", "data"),
        Input("run-tick", "n_intervals"),
        Input("run-window", "data"),
        Input("run-x", "value"),
        Input("run-smooth", "value"),
        Input("run-log", "value"),
        State("run-name", "data"),
        State({"type": "chart", "panel": ALL}, "id"),
        State({"type": "chart", "panel": ALL}, "figure"),
        State({"type": "last", "panel": ALL}, "id"),
        State("run-positions", "figure"),
        State("run-signals", "data"),
    )
    def _draw(
        _: int | None,
        window: list[float] | None,
        x: str,
        smooth: float,
        log: list[str],
        run: str,
        chart_ids: list[dict[str, str]],
        shown: list[dict[str, Any]],
        last_ids: list[dict[str, str]],
        positions: dict[str, Any],
        known: list[str] | None,
    ) -> Any:
        view = controls.view(x, smooth, log, window, run)
        nothing = [no_update] * len(chart_ids), [no_update] * len(last_ids)
        started = time.monotonic()
        try:
            got = _fetch(client, run, view)
        except EntrostatError as error:
            return *nothing, no_update, trouble(error, url), *[no_update] * 7
        figures = [_changed(_figure(i["panel"], got, view), old) for i, old in zip(chart_ids, shown, strict=True)]
        heads = [_head(i["panel"], got.curves) for i in last_ids]
        has_none = not got.spans and not any(e["kind"] == "intervention_refused" for e in got.marked)
        pace = pace_ms(got.detail["status"], time.monotonic() - started)
        by_position = _changed(positions_figure(got.positions, run), positions)
        told = _status(got.detail), None, _facts(got), pace, _findings(got.analysis), by_position
        names = sorted(set(got.detail["names"]) & set(RUN_PAGE_SIGNALS))
        height = {"height": f"{timeline_height(got.spans)}px"}
        return figures, heads, *told, has_none, height, no_update if names == known else names

    @app.callback(
        *[Output(f"card-{panel.key}", "hidden") for panel in PANELS],
        Output("run-absent", "children"),
        Output("run-absent-open", "hidden"),
        Input("run-signals", "data"),
        State("run-name", "data"),
    )
    def _arrange(names: list[str] | None, run: str) -> Any:
        missing = absent_panels(names or ())
        try:
            why = record.absent_reasons(client, run) if missing else {}
        except EntrostatError:
            why = {}  # the charts' own question says that the server is away
        rows = [(p.title, why.get(p.first, "no value has come")) for p in missing]
        return *[panel in missing for panel in PANELS], facts(rows), not missing

    @app.callback(
        Output("run-own", "children"),
        Input("run-own-open", "open"),
        Input("run-window", "data"),
        Input("run-x", "value"),
        Input("run-smooth", "value"),
        Input("run-log", "value"),
        State("run-name", "data"),
    )
    def _own(is_open: bool, window: list[float] | None, x: str, smooth: float, log: list[str], run: str) -> Any:
        if not is_open:  # only charts in view are fetched
            return no_update
        view = controls.view(x, smooth, log, window, run)
        try:
            names = [n for n in client.run(run)["names"] if n.startswith(USER_PREFIX)]
            curves = client.get("/v1/series", run=run, name=names, points=_POINTS)["series"] if names else []
        except EntrostatError as error:
            return trouble(error, url)
        return [_own_card(curve, view) for curve in curves] or html.P("Nothing.", className="quiet")


def _figure(key: str, got: _Fetched, view: View) -> Any:
    if key == _HEAT:
        baseline = got.detail.get("baseline") or {}
        return histogram_figure(got.heat, view, baseline.get("threshold"))
    if key == _TIMELINE:
        refused = [e for e in got.marked if e["kind"] == "intervention_refused"]
        place = placed(got.curves, view.x, got.tokens)
        seen = [curve["step"] for curve in got.curves if curve["step"]]
        steps = (min(s[0] for s in seen), max(s[-1] for s in seen)) if seen else None
        return timeline_figure(got.spans, refused, view, place, steps)
    panel = next(p for p in PANELS if p.key == key)
    return panel_figure(panel, got.curves, view, got.marked, got.tokens, got.spans)


def _changed(new: Any, old: dict[str, Any]) -> Any:
    """Only what differs, where the chart's lines are the same ones: the browser then moves points, not the chart."""
    figure = new.to_plotly_json()
    same_lines = [t.get("name") for t in old.get("data", [])] == [t.get("name") for t in figure["data"]]
    same_view = (old.get("layout") or {}).get("uirevision") == figure["layout"].get("uirevision")
    same_rows = _rows_of(old) == _rows_of(figure)
    if not (figure["data"] and same_lines and same_view and same_rows):
        return new
    patch = Patch()
    for index, trace in enumerate(figure["data"]):
        for part in ("x", "y", "z", "base", "text", "marker"):
            if part in trace:
                patch["data"][index][part] = trace[part]
    for part in ("shapes", "annotations"):
        patch["layout"][part] = figure["layout"].get(part, [])
    return patch


def _rows_of(figure: Mapping[str, Any]) -> list[str]:
    """Rows of a timeline, top last; of other charts nothing."""
    return list(((figure.get("layout") or {}).get("yaxis") or {}).get("categoryarray") or [])


def _head(key: str, curves: list[dict[str, Any]]) -> str:
    """The last value of the panel's first signal, and its change over the last tenth of what is on screen."""
    panel = next(p for p in PANELS if p.key == key)
    values = next(([v for v in c["value"] if v is not None] for c in curves if c["name"] == panel.first), [])
    if not values:
        return ""
    change = values[-1] - values[max(0, len(values) - 1 - max(1, len(values) // 10))]
    of_unit = f" {unit(panel.first)}" if unit(panel.first) else ""
    return f"{number(values[-1])}{of_unit}  {'▲' if change > 0 else '▼' if change < 0 else '•'} {number(abs(change))}"


def _status(detail: Mapping[str, Any]) -> list[Any]:
    step = "no step yet" if detail["last_step"] is None else f"step {detail['last_step']}"
    baseline = detail.get("baseline")
    told = f"h* = {number(baseline['threshold'])} nats" if baseline else "baseline of d_collapse: not complete yet"
    said = f" · {step} · {age(detail['last_seen'])} · {detail['trainer']} · {told}{removed(detail)}"
    return [status(detail["status"]), said]


def _findings(analysis: Mapping[str, Any]) -> list[html.Div]:
    return [
        html.Div([html.Span(title, className="quiet"), " ", html.Span(text)], title=tooltip)
        for title, text, tooltip in findings(analysis)
    ]


def _facts(got: _Fetched) -> list[Any]:
    detail = got.detail
    told = [("host", detail["host"]), ("git commit", detail["git_commit"]), ("ranks", detail["world_size"])]
    told += [(f"tag {k}", v) for k, v in (detail.get("tags") or {}).items()]
    sections = [("Run", told), ("Probe", flat(detail["settings"])), ("Versions", flat(detail["versions"]))]
    sections.append(("Settings", flat(detail["config"])))
    events = [(f"{e['kind']} at {e['step']}" if e["step"] is not None else e["kind"], e["message"]) for e in got.events]
    sections.append(("Events", events))
    return [html.Section([html.H4(title), facts(pairs)]) for title, pairs in sections]


def _own_card(curve: dict[str, Any], view: View) -> html.Div:
    name = curve["name"]
    panel = Panel(name, name.removeprefix(USER_PREFIX), (name,), name)
    chart = graph({"type": "own", "name": name})
    chart.figure = panel_figure(panel, [curve], view)
    return html.Div([html.Div(html.H3(panel.title), className="card-head"), chart], className="card")
