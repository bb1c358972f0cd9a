"""The timeline of interventions: a row for each, a band while it is in force, coloured by who wanted it."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from entrostat.dashboard.figures.axis import Place
from entrostat.dashboard.figures.lines import View
from entrostat.dashboard.figures.marks import who, words_of
from entrostat.dashboard.spans import Span
from entrostat.dashboard.theme import MARK, WHO, layout

ROW_PX = 26
_FRAME_PX = 74


def timeline_height(spans: Sequence[Span]) -> int:
    """Height in pixels that its rows need."""
    return _FRAME_PX + ROW_PX * max(1, len({span.name for span in spans}))


def timeline_figure(
    spans: Sequence[Span],
    refused: Sequence[Mapping[str, Any]],
    view: View,
    place: Place,
    steps: tuple[float, float] | None,
) -> go.Figure:
    """The spans over the x axis of the signal charts.

    Args:
        spans: as in ``spans_of``.
        refused: events of kind ``intervention_refused``: a cross in the row.
        view: its window and revision are used.
        place: step -> x.
        steps: first and last of the run: the x axis shows them, and what is still on is drawn up to the last.
    """
    figure = go.Figure()
    names = list(dict.fromkeys([_row(s.name) for s in spans] + [n for e in refused if (n := _name(e))]))
    for whose, title in (("person", "switched on by a person"), ("rule", "by a rule")):
        own = [s for s in spans if who(s) == whose]
        placed = [(s, place(s.start), place(_end(s, steps))) for s in own]
        drawn = [(s, x0, x1) for s, x0, x1 in placed if x0 is not None and x1 is not None]
        if drawn:
            rows = [_row(s.name) for s, _, _ in drawn]
            figure.add_bar(
                base=[x0 for _, x0, _ in drawn], x=[x1 - x0 for _, x0, x1 in drawn], y=rows,
                orientation="h", name=title, marker={"color": WHO[whose], "line": {"width": 0}}, width=0.62,
                text=[words_of(s) for s, _, _ in drawn], textposition="none", hovertemplate="%{text}<extra></extra>",
            )  # fmt: skip
    crosses = [(e, place(e["step"])) for e in refused if e.get("step") is not None and _name(e)]
    seen = [(e, at) for e, at in crosses if at is not None]
    if seen:
        figure.add_scatter(
            x=[at for _, at in seen], y=[_name(e) for e, _ in seen], mode="markers", name="refused by the trainer",
            marker={"symbol": "x", "size": 9, "color": MARK["intervention_refused"]},
            text=[html.escape(str(e["message"])[:300]) for e, _ in seen], hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    _add_extent(figure, names, [place(step) for step in steps or ()])
    x_axis: dict[str, Any] = {"range": list(view.window), "autorange": False} if view.window else {}
    y_axis = {"categoryorder": "array", "categoryarray": names[::-1], "fixedrange": True, "type": "category"}
    figure.update_layout(
        layout(xaxis=x_axis, yaxis=y_axis, uirevision=view.revision, hovermode="closest", barmode="overlay")
    )
    return figure


def _add_extent(figure: go.Figure, names: Sequence[str], ends: Sequence[float | None]) -> None:
    """An unseen line over the whole run: with it the axis is as long as those of the signal charts, and stays free."""
    if names and ends:
        unseen = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip", "name": "run"}
        figure.add_scatter(x=list(ends), y=[names[0]] * len(ends), **unseen)


def _end(span: Span, steps: tuple[float, float] | None) -> float:
    """Where its band ends; what has begun has at least one step."""
    if span.end is not None:
        return span.end
    return max(span.start, steps[1] if steps else 0) + 1


def _name(event: Mapping[str, Any]) -> str:
    return _row(str((event.get("detail") or {}).get("name") or ""))


def _row(name: str) -> str:
    """A row's title as text: any producer may name an intervention, and Plotly reads markup in titles."""
    return html.escape(name[:100])
