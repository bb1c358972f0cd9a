"""What happened, over the curves: lines where an event was, shade where an intervention was in force."""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from entrostat.dashboard.figures.axis import Place
from entrostat.dashboard.spans import Span
from entrostat.dashboard.theme import MARK, WHO, faint

_MOST_WORDS = 300
_SHADE = 0.10


def words_of(span: Span) -> str:
    """What a person reads of a span, as safe text with Plotly's line breaks."""
    until = "still on" if span.end is None else f"to step {span.end}"
    lines = [f"{span.name}, from step {span.start} {until}", params_text(span.params), f"by {span.by}", span.because]
    lines.append(f"ended: {span.ended}" if span.ended else "")
    return "<br>".join(_safe(line) for line in lines if line)


def params_text(params: Mapping[str, Any]) -> str:
    """``k=0.002, beta=1``; the paper's values where nothing was set."""
    return ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items())


def who(span: Span) -> str:
    """Whose colour a span has: ``rule`` or ``person``."""
    return "rule" if span.is_of_rule else "person"


def mark(
    figure: go.Figure, events: Iterable[Mapping[str, Any]], spans: Sequence[Span], place: Place, last_step: float | None
) -> None:
    """Shade where something was in force, and draw a line at each event.

    A point at the chart's foot has the words, since lines and shades have no hover. What was only changed while in
    force is one shade.

    Args:
        figure: with a ``y2`` from 0 to 1.
        events: those of a kind in ``MARK`` are drawn.
        spans: as in ``spans_of``.
        place: step -> x.
        last_step: what is still in force is shaded up to it.
    """
    pieces = _joined(spans)
    points = [(x, WHO[who(span)], words_of(span)) for span in pieces if (x := place(span.start)) is not None]
    seen = [
        (e, x)
        for e in events
        if e["kind"] in MARK and e.get("step") is not None and (x := place(e["step"])) is not None
    ]
    points += [(x, MARK[event["kind"]], _of_event(event)) for event, x in seen]
    figure.update_layout(
        # At once: Plotly checks every shape it is given alone against all others.
        shapes=[*_shades(pieces, place, last_step), *(_line(x, MARK[event["kind"]]) for event, x in seen)]
    )
    if points:
        at, colours, words = zip(*points, strict=True)
        figure.add_scatter(
            x=at, y=[0] * len(at), yaxis="y2", mode="markers", text=words, name="", showlegend=False,
            marker={"color": colours, "size": 7, "symbol": "triangle-up"}, hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip


def _shades(spans: Sequence[Span], place: Place, last_step: float | None) -> list[dict[str, Any]]:
    shades = []
    for span in spans:
        until = span.end if span.end is not None else max(span.start, last_step or 0) + 1
        x0, x1 = place(span.start), place(until)
        if x0 is not None and x1 is not None:
            fill = {"fillcolor": faint(WHO[who(span)], _SHADE), "line": {"width": 0}, "layer": "below"}
            shades.append({"type": "rect", "x0": x0, "x1": x1, "y0": 0, "y1": 1, "yref": "y domain", **fill})
    return shades


def _line(x: float, colour: str) -> dict[str, Any]:
    look = {"color": colour, "width": 1, "dash": "dot"}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "y domain", "line": look}


def _of_event(event: Mapping[str, Any]) -> str:
    words = f"{event['kind'].replace('_', ' ')} at step {event['step']}: {event['message']}"
    return _safe(words)


def _safe(text: str) -> str:
    """Only text, whatever it holds: cut first, so that no entity is cut in two."""
    return html.escape(text[:_MOST_WORDS])


def _joined(spans: Sequence[Span]) -> list[Span]:
    """What was in force without a gap and for the same kind of author as one span, with its first parameters.

    A thermostat changes a parameter at hundreds of steps: those are the timeline's, not marks on every chart.
    """
    found: dict[str, list[Span]] = {}
    for span in spans:
        own = found.setdefault(span.name, [])
        if own and own[-1].end == span.start and not own[-1].ended and who(own[-1]) == who(span):
            own[-1] = replace(own[-1], end=span.end, ended=span.ended)
        else:
            own.append(span)
    return [piece for pieces in found.values() for piece in pieces]
