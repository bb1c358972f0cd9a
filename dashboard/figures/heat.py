"""Distributions over steps."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from entrostat.dashboard.figures.lines import View
from entrostat.dashboard.theme import layout

# From nothing to the accent colour, so that empty bins are the page itself, dark or light.
_SCALE = [[0.0, "rgba(0,114,178,0)"], [0.25, "rgba(0,114,178,0.55)"], [1.0, "rgba(86,180,233,1)"]]


def histogram_figure(histogram: Mapping[str, Any], view: View, threshold: float | None = None) -> go.Figure:
    """The share of tokens in each bin, a column a step; the y axis is logarithmic, as the bins are.

    Args:
        histogram: as the server gives it (docs/http.md).
        view: its window and revision are used.
        threshold: drawn as a line: the baseline's h*, above which tokens count as forking.
    """
    figure = go.Figure()
    counts, low, high = histogram["count"], histogram["low"], histogram["high"]
    if counts:
        totals = [sum(c or 0 for c in column) or 1 for column in counts]
        shares = [
            [(column[i] or 0) / total for column, total in zip(counts, totals, strict=True)] for i in range(len(low))
        ]
        # Bin 0 begins at 0, which a logarithmic axis does not have; the last has no end.
        y = [max(lo, hi / 2) if lo <= 0 else (lo * min(hi, 2 * lo)) ** 0.5 for lo, hi in zip(low, high, strict=True)]
        figure.add_heatmap(
            x=histogram["step"], y=y, z=shares, colorscale=_SCALE, showscale=False,
            hovertemplate="step %{x}<br>%{y:.3g} nats<br>%{z:.1%} of tokens<extra></extra>",
        )  # fmt: skip
    if threshold:
        figure.add_hline(y=threshold, line={"color": "#d55e00", "width": 1, "dash": "dot"}, annotation_text="h*")
    x_axis = {"range": list(view.window), "autorange": False} if view.window else {}
    y_axis = {"type": "log", "title": {"text": "nats", "font": {"size": 11}, "standoff": 4}}
    figure.update_layout(layout(xaxis=x_axis, yaxis=y_axis, uirevision=view.revision, hovermode="closest"))
    return figure
