"""Pieces that several pages share."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dash import dcc, html

from entrostat.wire.errors import EntrostatError, Refused

GRAPH_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "pan2d"],
    "toImageButtonOptions": {"format": "png", "scale": 2},
}
# Before the first answer: no axes, rather than axes that promise numbers.
BLANK = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "xaxis": {"visible": False},
    "yaxis": {"visible": False},
}
POLL_MS = 2000
_REST = 5
"""Between two questions at least so many times as long as the last answer took: a server's time is its runs'."""
ATTACH = "import entrostat\nentrostat.attach(trainer)\ntrainer.train()"


def removed(detail: Mapping[str, Any]) -> str:
    """That token rows of a run are gone, so that their absence is not taken for nothing measured; else nothing."""
    when = detail["tokens_removed"]
    return f" · token rows removed {when[:10]} (events)" if when else ""


def pace_ms(run_status: str, took_s: float) -> int:
    """How long a live page waits until it asks again. A run that has ended changes no more: seldom, it may resume."""
    return max(POLL_MS if run_status == "live" else 5 * POLL_MS, int(1000 * _REST * took_s))


def graph(identity: Any) -> dcc.Graph:
    """An empty chart of the common size."""
    return dcc.Graph(id=identity, config=GRAPH_CONFIG, style={"height": "250px"}, figure={"data": [], "layout": BLANK})


def trouble(error: EntrostatError, url: str) -> html.Div:
    """What a person reads when the server cannot be asked."""
    if isinstance(error, Refused) and error.status in (401, 403):
        title, rest = "The server wants a token.", "Start the dashboard with ENTROSTAT_TOKEN set to one that may read."
    elif isinstance(error, Refused):
        title, rest = "The server refused.", error.message
    else:
        title, rest = f"The server at {url} does not answer.", "Start it with"
    extra = [] if isinstance(error, Refused) else [" ", html.Code("entrostat up"), ". This page tries again by itself."]
    return html.Div([html.Strong(title), " ", rest, *extra], className="banner", role="alert")


def no_runs() -> html.Div:
    """What a person reads before the first run."""
    return html.Div(
        [
            html.H2("No runs yet"),
            html.P("Attach one. It appears here with its first step."),
            html.Pre(ATTACH),
            html.P(["Or watch a small one: ", html.Code("make demo")]),
        ],
        className="empty",
    )


def age(moment: str | None) -> str:
    """How long ago a time of the server's (ISO, UTC) was."""
    if not moment:
        return ""
    then = datetime.fromisoformat(moment)
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    seconds = max(0.0, (datetime.now(UTC) - then).total_seconds())
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name} ago"
    return f"{seconds:.0f} s ago"


def status(value: str) -> html.Span:
    """A run's status with its dot."""
    return html.Span([html.Span(className=f"dot {value}"), value], className="status")


def facts(pairs: Sequence[tuple[str, Any]]) -> html.Dl:
    """Name and value, one under the other; values are text, whatever they hold."""
    return html.Dl([part for name, value in pairs for part in (html.Dt(name), html.Dd(str(value)))], className="facts")


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings as dotted names."""
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found
