"""Questions in SQL, with the views and their columns beside them."""

from html import escape
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from entrostat.dashboard.pages.parts import GRAPH_CONFIG, trouble
from entrostat.dashboard.spreadsheets import csv_bytes
from entrostat.dashboard.theme import colour
from entrostat.dashboard.theme import layout as chart_layout
from entrostat.dashboard.words import number
from entrostat.wire.client import Client
from entrostat.wire.errors import EntrostatError, Refused

_MAX_ROWS = 10_000
_MAX_CSV_ROWS = 1_000_000
_SHOWN_ROWS = 200
EXAMPLES = {
    "the last steps of every run": "select run, step, entropy_mean, pass_at_1, d_collapse\nfrom step\n"
    "qualify row_number() over (partition by run order by step desc) <= 3\norder by run, step",
    "tokens that carry the covariance": "select token_id, count(*) as n, sum(cov / prob) as cov\nfrom token\n"
    "group by token_id\norder by cov desc\nlimit 20",
    "entropy from the token sample": "select run, step, sum(entropy / prob) / sum(1 / prob) as entropy_mean\n"
    "from token\ngroup by run, step\norder by run, step",
    "prompts by difficulty": "select run, step, prompt, avg(reward) as success, avg(mean_entropy) as entropy\n"
    "from sequence\ngroup by all\norder by step desc, success\nlimit 50",
}


def layout() -> html.Div:
    """The page."""
    first = next(iter(EXAMPLES.values()))
    picks = [
        html.Button(title, id={"type": "sql-example", "title": title}, n_clicks=0, className="quiet-button")
        for title in EXAMPLES
    ]
    return html.Div(
        [
            html.Div(
                [
                    html.H1("SQL"),
                    html.Div(picks, className="bar"),
                    dcc.Textarea(id="sql-text", value=first, spellCheck=False),
                    html.Div(
                        [
                            html.Button("run  (Ctrl+Enter)", id="sql-run", n_clicks=0, className="button"),
                            html.Button("CSV", id="sql-csv", n_clicks=0),
                            dcc.Download(id="sql-download"),
                            html.Span(id="sql-note", className="quiet"),
                        ],
                        className="bar",
                    ),
                    html.Div(id="sql-trouble"),
                    dcc.Loading(html.Div(id="sql-result"), delay_show=300),
                ],
                className="main",
            ),
            html.Aside([html.H4("views"), html.Div(id="sql-schema")]),
        ],
        className="with-aside",
    )


def register(app: Dash, client: Client, url: str) -> None:
    """The page's callbacks."""

    @app.callback(Output("sql-schema", "children"), Input("sql-schema", "id"))
    def _schema(_: str) -> Any:
        try:
            views = client.get("/v1/schema")["views"]
        except EntrostatError as error:
            return trouble(error, url)
        return [_view(v) for v in views]

    @app.callback(
        Output("sql-text", "value"),
        Input({"type": "sql-example", "title": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    def _example(_: list[int]) -> Any:
        cause = ctx.triggered_id
        return EXAMPLES[cause["title"]] if isinstance(cause, dict) and ctx.triggered[0]["value"] else no_update

    @app.callback(
        Output("sql-result", "children"),
        Output("sql-trouble", "children"),
        Output("sql-note", "children"),
        Input("sql-run", "n_clicks"),
        State("sql-text", "value"),
        prevent_initial_call=True,
    )
    def _run(_: int, statement: str) -> Any:
        try:
            table, is_cut = client.sql(statement, _MAX_ROWS)
        except Refused as error:
            return None, html.Div(error.message, className="banner", role="alert"), ""
        except EntrostatError as error:
            return None, trouble(error, url), ""
        note = _counted(table, is_cut)
        if table.num_rows > _SHOWN_ROWS:
            note += f", the first {_SHOWN_ROWS} shown"
        return [_chart(table), _rows(table)], None, note

    @app.callback(
        Output("sql-download", "data"),
        Output("sql-note", "children", allow_duplicate=True),
        Input("sql-csv", "n_clicks"),
        State("sql-text", "value"),
        prevent_initial_call=True,
    )
    def _csv(_: int, statement: str) -> Any:
        try:
            table, is_cut = client.sql(statement, _MAX_CSV_ROWS)
        except EntrostatError as error:
            return no_update, f"no CSV: {error}"
        nested = [f.name for f in table.schema if pa.types.is_nested(f.type)]
        note = f"CSV: {_counted(table, is_cut)}" + (f", without {', '.join(nested)} (lists)" if nested else "")
        return dcc.send_bytes(csv_bytes(table), "entrostat.csv"), note


def _counted(table: pa.Table, is_cut: bool) -> str:
    return f"{table.num_rows} rows" + (": cut here, there are more" if is_cut else "")


def _view(view: dict[str, Any]) -> html.Details:
    columns = [
        html.Div([html.Code(c["name"]), html.Span(c["type"].lower(), className="quiet")], title=c["comment"])
        for c in view["columns"]
    ]
    return html.Details([html.Summary(view["name"], title=view["comment"]), *columns])


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _rows(table: pa.Table) -> html.Table:
    is_number = [_is_number(f.type) for f in table.schema]
    body = [
        html.Tr(
            [
                html.Td(_cell(value), className="number" if right else "")
                for value, right in zip(row.values(), is_number, strict=True)
            ]
        )
        for row in table.slice(0, _SHOWN_ROWS).to_pylist()
    ]
    return html.Table(
        [html.Thead(html.Tr([html.Th(n) for n in table.column_names])), html.Tbody(body)], className="sql"
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else str(value)


def _chart(table: pa.Table) -> Any:
    """A curve of each number over the column ``step``, where there is one."""
    numbers = [f.name for f in table.schema if _is_number(f.type) and f.name != "step"]
    if "step" not in table.column_names or not numbers or table.num_rows < 2:
        return None
    figure = go.Figure()
    for index, name in enumerate(numbers[:8]):
        figure.add_scatter(
            x=table["step"].to_pylist(), y=table[name].to_pylist(), mode="markers", name=escape(name),
            marker={"size": 4, "color": colour(index)},
        )  # fmt: skip
    figure.update_layout(chart_layout(height=260))
    return html.Details(
        [html.Summary("chart over step"), dcc.Graph(figure=figure, config=GRAPH_CONFIG, style={"height": "260px"})],
        open=False,
    )
