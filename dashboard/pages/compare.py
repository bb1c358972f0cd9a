"""Several runs over each other, a chart a signal."""

from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from entrostat.dashboard.figures.lines import signal_figure
from entrostat.dashboard.pages import controls
from entrostat.dashboard.pages.parts import graph, trouble
from entrostat.dashboard.words import label
from entrostat.wire.client import Client
from entrostat.wire.errors import EntrostatError
from entrostat.wire.signals import SIGNALS

_FIRST = ["entropy_mean", "d_collapse", "reward_mean", "pass_at_1", "pass_at_8", "cov_mean"]
_MOST_CHARTS = 24


def layout(search: str) -> html.Div:
    """The page; runs and signals as the address says."""
    state = controls.read(search)
    runs = [r for r in state.get("runs", "").split(",") if r]
    signals = [s for s in state.get("signals", "").split(",") if s] or _FIRST
    return html.Div(
        [
            dcc.Interval(id="compare-tick", interval=5000),
            html.H1("Compare runs"),
            dcc.Dropdown(runs, runs, id="compare-runs", multi=True, placeholder="runs"),
            dcc.Dropdown(
                # A value that is no option is dropped: those of the address are options from the beginning.
                list(dict.fromkeys([*(s.name for s in SIGNALS), *signals])),
                signals,
                id="compare-signals",
                multi=True,
                placeholder="signals",
                maxHeight=400,
            ),
            controls.bar("compare", state),
            html.Div(id="compare-trouble"),
            html.Div(id="compare-charts", className="grid"),
        ]
    )


def register(app: Dash, client: Client, url: str) -> None:
    """The page's callbacks."""

    @app.callback(
        Output("compare-runs", "options"),
        Output("compare-signals", "options"),
        Input("compare-tick", "n_intervals"),
        State("compare-runs", "value"),
        State("compare-signals", "options"),
    )
    def _choices(_: int | None, chosen: list[str] | None, signals: list[str]) -> Any:
        try:
            runs = [r["run"] for r in client.runs(limit=500)]
            own = [n for run in (chosen or [])[:3] for n in client.run(run)["names"]]
        except EntrostatError:
            return no_update, no_update  # the charts' callback says what is wrong
        return sorted({*runs, *(chosen or [])}), list(dict.fromkeys([*signals, *own]))

    @app.callback(
        Output("compare-charts", "children"),
        Output("compare-trouble", "children"),
        Output("url", "search", allow_duplicate=True),
        Input("compare-tick", "n_intervals"),
        Input("compare-runs", "value"),
        Input("compare-signals", "value"),
        Input("compare-x", "value"),
        Input("compare-smooth", "value"),
        Input("compare-log", "value"),
        Input("compare-reset", "n_clicks"),
        State("compare-charts", "children"),
        prevent_initial_call="initial_duplicate",
    )
    def _draw(
        _: int | None,
        runs: list[str] | None,
        signals: list[str] | None,
        x: str,
        smooth: float,
        log: list[str],
        resets: int,
        shown: list[Any] | None,
    ) -> Any:
        address = controls.written(x, smooth, log, None, runs=",".join(runs or []), signals=",".join(signals or []))
        if not runs:
            return html.P("Choose runs above, or tick them in the list.", className="empty"), None, address
        view = controls.view(x if x != "tokens" else "step", smooth, log, None, f"{runs} {resets}")
        try:
            asked = {"run": runs, "name": (signals or [])[:_MOST_CHARTS], "points": 500}
            curves = client.get("/v1/series", **asked)["series"] if signals else []
        except EntrostatError as error:
            return no_update, trouble(error, url), address
        charts = []
        for name in (signals or [])[:_MOST_CHARTS]:
            chart = graph({"type": "compared", "name": name})
            chart.figure = signal_figure(name, [c for c in curves if c["name"] == name and c["step"]], view)
            charts.append(html.Div([html.Div(html.H3(label(name)), className="card-head"), chart], className="card"))
        return charts, None, address
