"""Plotly figures of an experiment, one after the other in one HTML file that needs no network."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entrostat.wire.errors import EntrostatError

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Okabe and Ito's palette, which colour-blind people can tell apart.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#b8a200")


def need_plotly() -> None:
    """Check before a long run that its picture can be drawn.

    Raises:
        EntrostatError: plotly is not installed.
    """
    try:
        import plotly  # noqa: F401
    except ImportError as error:
        raise EntrostatError("--picture needs plotly: pip install 'entrostat[dashboard]', or leave it out") from error


def write(figures: Sequence["go.Figure"], path: Path) -> None:
    """Write ``figures`` to ``path``; plotly's script is in the file, once."""
    parts = [figure.to_html(full_html=False, include_plotlyjs=not i) for i, figure in enumerate(figures)]
    path.write_text(f"<!doctype html><meta charset='utf-8'>{''.join(parts)}", encoding="utf-8")


def layout(title: str, **more: Any) -> dict[str, Any]:
    """What every figure has in common."""
    return {"title": title, "template": "plotly_white", "font": {"family": "system-ui, sans-serif", "size": 12}} | more
