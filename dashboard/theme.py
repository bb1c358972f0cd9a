"""Colours. Backgrounds are transparent and text is mid-grey, so that one figure serves dark and light alike."""

from typing import Any

# Okabe and Ito's palette, which colour-blind people can tell apart, in an order that starts calm.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#b8a200")
GREY = "#8a919c"
GRID = "rgba(138,145,156,0.18)"
WHO = {"rule": "#0072b2", "person": "#e69f00"}
"""Who wanted an intervention."""
_BAD = "#d55e00"
MARK = {
    "warning": _BAD,
    "dropped": _BAD,
    "resumed": "#56b4e9",
    "run_ended": GREY,
    "server_lost": _BAD,
    "server_back": GREY,
    "intervention_refused": _BAD,
    "rule_fired": WHO["rule"],
    "rule_proposed": "#cc79a7",
    "rule_ended": GREY,
    "rule_withdrawn": GREY,
}
"""Kind of event -> the colour of its line."""


def colour(index: int) -> str:
    """The colour of the index-th line."""
    return COLOURS[index % len(COLOURS)]


def faint(hex_colour: str, opacity: float) -> str:
    """``#rrggbb`` as rgba."""
    red, green, blue = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def layout(**more: Any) -> dict[str, Any]:
    """What every chart's layout has in common."""
    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": GRID, "tickfont": {"size": 11}, "automargin": True}
    base: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": GREY, "family": "system-ui, sans-serif", "size": 12},
        "margin": {"l": 46, "r": 10, "t": 24, "b": 24},
        "hovermode": "x unified",
        "hoverlabel": {"font": {"size": 11}},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"size": 10}, "itemwidth": 30},
        "xaxis": dict(axis),
        "yaxis": dict(axis),
        "dragmode": "zoom",
        # Else a dark box: half of the transparent paper.
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY},
    }
    for key, value in more.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) and key in base else value
    return base
