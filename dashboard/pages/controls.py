"""How curves are looked at: x axis, smoothing, log axis, window; kept in the address."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from dash import dcc, html

from entrostat.dashboard.figures.lines import View

X_AXES = ("step", "time", "tokens")


def bar(prefix: str, state: Mapping[str, str]) -> html.Div:
    """The controls, set as the address says."""
    return html.Div(
        [
            html.Label(
                ["x ", dcc.RadioItems(list(X_AXES), state.get("x", "step"), id=f"{prefix}-x", inline=True)],
                className="control",
            ),
            html.Label(
                [
                    "smoothing ",
                    dcc.Slider(
                        0, 0.99, 0.01, value=_number(state.get("smooth"), 0.0), id=f"{prefix}-smooth", marks=None
                    ),
                ],
                className="control slider",
            ),
            dcc.Checklist(["log y"], ["log y"] if state.get("log") else [], id=f"{prefix}-log", className="control"),
            html.Button("whole run", id=f"{prefix}-reset", n_clicks=0, title="Undo the zoom of all charts"),
        ],
        className="bar",
    )


def read(search: str | None) -> dict[str, str]:
    """The state in an address's ``?...``."""
    return dict(parse_qsl((search or "").lstrip("?")))


def written(x: str, smoothing: float, log: list[str], window: list[float] | None, **more: str) -> str:
    """The state as an address's ``?...``; what is as usual is left out."""
    pairs = dict(more)
    if x != "step":
        pairs["x"] = x
    if smoothing:
        pairs["smooth"] = f"{smoothing:g}"
    if log:
        pairs["log"] = "1"
    if window:
        pairs["from"], pairs["to"] = f"{window[0]:g}", f"{window[1]:g}"
    return f"?{urlencode(pairs)}" if pairs else ""


def window_of(state: Mapping[str, str]) -> list[float] | None:
    """The window in an address."""
    if "from" not in state or "to" not in state:
        return None
    low, high = _number(state["from"], 0.0), _number(state["to"], 0.0)
    return [low, high] if high > low else None


def view(x: str, smoothing: float | None, log: list[str] | None, window: list[float] | None, what: str) -> View:
    """The choices as a view; a person's own zoom of an axis lives until one of these changes."""
    bounds = (window[0], window[1]) if window else None
    return View(x, smoothing or 0.0, bool(log), bounds, revision=f"{what} {x} {bool(log)} {bounds}")


def zoomed(relayout: Mapping[str, Any] | None) -> list[float] | str | None:
    """What a chart's zoom asks for: a window, None for the whole, ``"same"`` for something else."""
    if not relayout:
        return "same"
    if "xaxis.range[0]" in relayout and "xaxis.range[1]" in relayout:
        return [float(relayout["xaxis.range[0]"]), float(relayout["xaxis.range[1]"])]
    if relayout.get("xaxis.autorange"):
        return None
    return "same"


def _number(text: str | None, default: float) -> float:
    try:
        return float(text) if text is not None else default
    except ValueError:
        return default
