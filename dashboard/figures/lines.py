"""Curves over steps: raw line, smoothed line, envelope where steps were thinned, marks of events."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from entrostat.dashboard.figures.axis import Series, placed, x_of
from entrostat.dashboard.figures.marks import mark
from entrostat.dashboard.spans import Span
from entrostat.dashboard.theme import colour, faint, layout
from entrostat.dashboard.words import Panel, label, unit


@dataclass(frozen=True, slots=True)
class View:
    """How a person looks at curves.

    Args:
        x: ``step``, ``time`` (minutes since the run's first step) or ``tokens`` (response tokens so far).
        smoothing: 0 (none) up to below 1: weight of the past in the running mean.
        log_y: a logarithmic y axis.
        window: (from, to) in units of x, None for all.
        revision: charts keep a person's zoom while this stays the same.
    """

    x: str = "step"
    smoothing: float = 0.0
    log_y: bool = False
    window: tuple[float, float] | None = None
    revision: str = ""


def smoothed(values: Sequence[float | None], weight: float) -> list[float | None]:
    """Exponential running mean without the pull towards 0 at the start (Adam's bias correction); gaps stay gaps."""
    mean, mass = 0.0, 0.0
    out: list[float | None] = []
    for value in values:
        if value is None:
            out.append(None)
            continue
        mean = weight * mean + (1 - weight) * value
        mass = weight * mass + (1 - weight)
        out.append(mean / mass)
    return out


def panel_figure(
    panel: Panel,
    curves: Sequence[Series],
    view: View,
    events: Sequence[Mapping[str, Any]] = (),
    tokens: Mapping[int, float] | None = None,
    spans: Sequence[Span] = (),
) -> go.Figure:
    """One panel of the run page.

    Args:
        panel: what it shows.
        curves: as the server gives them; those of other panels are left out.
        view: how.
        events: marked with a line each.
        tokens: step -> response tokens up to it, for the x axis of that name.
        spans: what was in force when: shaded.
    """
    figure = go.Figure()
    by_name = {c["name"]: c for c in curves}
    for index, name in enumerate(n for n in panel.signals if n in by_name):
        sign = -1.0 if name in panel.negated else 1.0
        title = ("− " if sign < 0 else "") + html.escape(label(name))
        _add(figure, by_name[name], view, title, colour(index), sign, tokens)
    if panel.band and all(n in by_name for n in panel.band):
        _add_band(figure, by_name[panel.band[0]], by_name[panel.band[1]], view, tokens)
    if not figure.data:
        return nothing_figure(view.revision)
    _finish(figure, view, unit(panel.first))
    last_step = max((c["step"][-1] for c in curves if c["step"]), default=None)
    mark(figure, events, spans, placed(curves, view.x, tokens), last_step)
    return figure


def nothing_figure(revision: str) -> go.Figure:
    """A chart of signals that have no values in the window: says so, without axes that promise numbers."""
    hidden = {"visible": False, "fixedrange": True}
    said = {"text": "no values", "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    return go.Figure(layout=layout(xaxis=hidden, yaxis=hidden, uirevision=revision, annotations=[said]))


def signal_figure(name: str, curves: Sequence[Series], view: View) -> go.Figure:
    """One signal, several runs."""
    figure = go.Figure()
    for index, curve in enumerate(curves):
        _add(figure, curve, view, html.escape(curve["run"]), colour(index), 1.0, None)
    _finish(figure, view, unit(name))
    return figure


def _add(
    figure: go.Figure,
    curve: Series,
    view: View,
    title: str,
    line_colour: str,
    sign: float,
    tokens: Mapping[int, float] | None,
) -> None:
    x = x_of(curve, view.x, tokens)
    y = [None if v is None else sign * v for v in curve["value"]]
    if curve.get("bucket_steps", 1) > 1:
        low, high = ([None if v is None else sign * v for v in curve[end]] for end in ("low", "high"))
        if sign < 0:
            low, high = high, low
        _add_envelope(figure, x, low, high, line_colour)
    is_smoothed = view.smoothing > 0
    if is_smoothed:
        line = {"color": faint(line_colour, 0.25), "width": 1}
        figure.add_scatter(x=x, y=y, mode="lines", line=line, showlegend=False, hoverinfo="skip")
        y = smoothed(y, view.smoothing)
    # A single point has no line to show it.
    mode = "lines+markers" if len(x) == 1 else "lines"
    figure.add_scatter(
        x=x, y=y, mode=mode, name=title, line={"color": line_colour, "width": 1.8}, hovertemplate="%{y:.4g}"
    )


def _add_envelope(
    figure: go.Figure, x: list[float | None], low: list[float | None], high: list[float | None], line_colour: str
) -> None:
    shared = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    figure.add_scatter(x=x, y=low, **shared)
    figure.add_scatter(x=x, y=high, fill="tonexty", fillcolor=faint(line_colour, 0.18), **shared)


def _add_band(figure: go.Figure, mean: Series, spread: Series, view: View, tokens: Mapping[int, float] | None) -> None:
    known = dict(zip(spread["step"], spread["value"], strict=True))
    pairs = [(m, known.get(s)) for s, m in zip(mean["step"], mean["value"], strict=True)]
    low = [None if m is None or s is None else m - s for m, s in pairs]
    high = [None if m is None or s is None else m + s for m, s in pairs]
    _add_envelope(figure, x_of(mean, view.x, tokens), low, high, colour(0))


def _finish(figure: go.Figure, view: View, y_unit: str) -> None:
    x_axis: dict[str, Any] = {}
    if view.window:
        x_axis = {"range": list(view.window), "autorange": False}
    y_axis: dict[str, Any] = {"type": "log" if view.log_y else "linear"}
    if y_unit:
        y_axis["title"] = {"text": y_unit, "font": {"size": 11}, "standoff": 4}
    figure.update_layout(layout(xaxis=x_axis, yaxis=y_axis, uirevision=view.revision))
    marks_axis = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    figure.update_layout(yaxis2=marks_axis)
