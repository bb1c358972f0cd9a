"""The list of runs: search, headline numbers, and the way to compare."""

from typing import Any
from urllib.parse import quote, urlencode

from dash import ALL, Dash, Input, Output, State, dcc, html, no_update

from entrostat.dashboard.pages.parts import age, no_runs, status, trouble
from entrostat.dashboard.words import number
from entrostat.wire.client import Client
from entrostat.wire.errors import EntrostatError

_HEADLINES = (
    ("entropy_mean", "entropy"),
    ("d_collapse", "d_collapse"),
    ("reward_mean", "reward"),
    ("pass_at_1", "pass@1"),
)


def layout() -> html.Div:
    """The page, before the first answer."""
    return html.Div(
        [
            dcc.Interval(id="runs-tick", interval=3000),
            html.Div(
                [
                    dcc.Input(id="runs-search", type="search", placeholder="search name or tag", debounce=0.2),
                    dcc.Link("compare ticked", id="runs-compare", href="/compare", className="button"),
                ],
                className="bar",
            ),
            html.Div(id="runs-trouble"),
            html.Div("asking the server…", id="runs-table", className="empty"),
        ]
    )


def register(app: Dash, client: Client, url: str) -> None:
    """The page's callbacks."""

    @app.callback(
        Output("runs-table", "children"),
        Output("runs-table", "className"),
        Output("runs-trouble", "children"),
        Input("runs-tick", "n_intervals"),
        Input("runs-search", "value"),
        State({"type": "run-tick", "run": ALL}, "value"),
        State({"type": "run-tick", "run": ALL}, "id"),
    )
    def _list(_: int | None, search: str | None, ticks: list[list[str]], ids: list[dict[str, str]]) -> Any:
        try:
            found = client.runs(search=search or "", limit=200)
        except EntrostatError as error:
            return no_update, no_update, trouble(error, url)
        ticked = {i["run"] for i, value in zip(ids, ticks, strict=True) if value}
        if not found:
            return (html.P(f"No run matches {search!r}.") if search else no_runs()), "empty", None
        return _table(found, ticked), "", None

    @app.callback(
        Output("runs-compare", "href"),
        Input({"type": "run-tick", "run": ALL}, "value"),
        State({"type": "run-tick", "run": ALL}, "id"),
    )
    def _compare(ticks: list[list[str]], ids: list[dict[str, str]]) -> str:
        chosen = [i["run"] for i, value in zip(ids, ticks, strict=True) if value]
        return "/compare" + (f"?{urlencode({'runs': ','.join(chosen)})}" if chosen else "")


def _table(runs: list[dict[str, Any]], ticked: set[str]) -> html.Table:
    head = ["", "run", "status", "step", *(title for _, title in _HEADLINES), "tags", "last seen"]
    return html.Table(
        [
            html.Thead(html.Tr([html.Th(h) for h in head])),
            html.Tbody([_row(run, run["run"] in ticked) for run in runs]),
        ],
        className="runs",
    )


def _row(run: dict[str, Any], is_ticked: bool) -> html.Tr:
    latest = run.get("latest") or {}
    tags = [html.Span(f"{k}={v}", className="tag") for k, v in (run.get("tags") or {}).items()]
    tick = dcc.Checklist(
        [{"label": "", "value": "on"}], ["on"] if is_ticked else [], id={"type": "run-tick", "run": run["run"]}
    )
    return html.Tr(
        [
            html.Td(tick),
            html.Td(dcc.Link(run["run"], href=f"/run/{quote(run['run'])}")),
            html.Td(status(run["status"])),
            html.Td("" if run["last_step"] is None else run["last_step"], className="number"),
            *(html.Td(number(latest.get(name)), className="number") for name, _ in _HEADLINES),
            html.Td(tags),
            html.Td(age(run.get("last_seen")), className="quiet"),
        ]
    )
