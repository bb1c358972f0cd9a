"""Curves over relative position in the response."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from entrostat.dashboard.figures.lines import nothing_figure
from entrostat.dashboard.theme import colour, layout
from entrostat.wire.signals import PROFILES

_LABELS = {"entropy_by_position": "all", "entropy_by_position_pos": "A > 0", "entropy_by_position_neg": "A < 0"}


def positions_figure(rows: Sequence[Mapping[str, Any]], revision: str = "") -> go.Figure:
    """One step's curves, by the sign of the advantage.

    Args:
        rows: of the view ``profile``: name, low, high, mean; of one step.
        revision: the chart keeps a person's zoom while this stays the same.
    """
    figure = go.Figure()
    for index, signal in enumerate(PROFILES):
        points = sorted(((r["low"] + r["high"]) / 2, r["mean"]) for r in rows if r["name"] == signal.name)
        if points:
            x, y = zip(*points, strict=True)
            figure.add_scatter(
                x=x, y=y, mode="lines+markers", name=_LABELS.get(signal.name, signal.name),
                line={"color": colour(index), "width": 1.8}, marker={"size": 4}, hovertemplate="%{y:.4g}",
            )  # fmt: skip
    if not figure.data:
        return nothing_figure(revision)
    x_axis = {"range": [0, 1], "title": {"text": "place in the response", "font": {"size": 11}, "standoff": 2}}
    y_axis = {"title": {"text": "nats", "font": {"size": 11}, "standoff": 4}}
    figure.update_layout(layout(xaxis=x_axis, yaxis=y_axis, uirevision=revision))
    return figure
