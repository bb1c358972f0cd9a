"""A form made from the catalogue: a field for each parameter of an intervention, and what was typed as parameters.

Numbers are typed as text: a browser's own number field hands over nothing where a value is out of bounds, and nothing
would mean the paper's default.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from entrostat.dashboard.words import number
from entrostat.wire.errors import BadParameter
from entrostat.wire.interventions import BY_NAME, INTERVENTIONS, Intervention, Param

_WORDS = {"true": True, "false": False}


def options(allowed: Sequence[str] | None) -> list[dict[str, Any]]:
    """The interventions to choose from.

    Args:
        allowed: those that the run allows; the others cannot be chosen. None: unknown, the server will say.
    """
    return [
        {
            "label": i.name if is_free else f"{i.name} (not allowed in this run)",
            "value": i.name,
            "disabled": not is_free,
        }
        for i in INTERVENTIONS
        for is_free in [allowed is None or i.name in allowed]
    ]


def field_id(param: str) -> dict[str, str]:
    """The id of a parameter's input."""
    return {"type": "param", "name": param}


def trouble_id(param: str) -> dict[str, str]:
    """The id of the place where a parameter's mistake is told."""
    return {"type": "param-trouble", "name": param}


def about(intervention: Intervention) -> html.Div:
    """What it does, where it comes from, what it needs and what it cannot be combined with."""
    told = [html.P(intervention.meaning), html.P(intervention.source, className="quiet")]
    if intervention.needs:
        told.append(html.P(f"needs {', '.join(intervention.needs)}", className="quiet"))
    told += [html.P(f"not together with {n}: {why}", className="quiet") for n, why in intervention.excludes.items()]
    return html.Div(told, className="about")


def fields(
    intervention: Intervention, values: Mapping[str, Any], bounds: Mapping[str, Sequence[float]] | None = None
) -> list[html.Div]:
    """A field for each parameter, filled with ``values``, with the paper's default shown where it is empty.

    Args:
        bounds: ``intervention.parameter`` -> the lowest and highest value that the run's user allows.
    """
    if not intervention.params:
        return [html.Div("no parameters", className="quiet")]
    # The server chooses thresholds itself, over the whole step: a person's own is rare and comes last.
    ordered = sorted(intervention.params, key=lambda p: p.name == "threshold")
    own = {p.name: (bounds or {}).get(f"{intervention.name}.{p.name}") for p in ordered}
    return [_field(param, values.get(param.name), own[param.name]) for param in ordered]


def read(name: str, typed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What was typed, as parameters; and for each parameter that cannot be, what it may be.

    Args:
        name: of the intervention.
        typed: parameter -> what its field holds; an empty field is left out: the paper's default counts.
    """
    params: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    declared = BY_NAME[name]
    for param in declared.params:
        text = typed.get(param.name)
        if text is None or text == "":
            continue
        try:
            params |= declared.checked({param.name: _value(param, text)})
        except (ValueError, BadParameter):
            wrong[param.name] = f"{param.name} may be {param.allowed}, not {str(text)[:40]}"
    return params, wrong


def step_of(text: str | None) -> int | None:
    """The last step a person typed; None where the field is empty. Raises ValueError with what to write."""
    if not (text or "").strip():
        return None
    try:
        step = int(str(text))
    except ValueError:
        step = -1
    if step < 0:
        raise ValueError(f"the last step is a whole number from 0 on, not {text}")
    return step


def _field(param: Param, value: Any, bounds: Sequence[float] | None) -> html.Div:
    identity = field_id(param.name)
    head = html.Span(param.name, className="name")
    limits = f" This run: {bounds[0]:g} to {bounds[1]:g}." if bounds else ""
    hint = html.Span([param.meaning, " ", html.Span(_allowed(param)), limits], className="hint")
    trouble = html.Span(id=trouble_id(param.name), className="field-trouble", role="alert")
    return html.Div([html.Label([head, _input(param, identity, value)]), hint, trouble], className="field")


def _input(param: Param, identity: dict[str, str], value: Any) -> Any:
    choices = list(param.choices) or (list(_WORDS) if param.kind == "boolean" else [])
    shown = _text(value)
    if choices:
        return dcc.Dropdown(choices, shown or None, id=identity, placeholder=_text(param.default), searchable=False)
    return dcc.Input(
        id=identity, type="text", value=shown, placeholder=_text(param.default), autoComplete="off",
        inputMode="decimal" if param.kind in ("number", "integer") else "text", debounce=False,
    )  # fmt: skip


def _allowed(param: Param) -> str:
    return "" if param.choices or param.kind == "boolean" else f"({param.allowed})"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return number(value) if isinstance(value, float) and float(number(value)) == value else str(value)


def _value(param: Param, text: Any) -> Any:
    said = str(text).strip()
    if param.kind == "boolean" and said.lower() in _WORDS:
        return _WORDS[said.lower()]
    if param.kind == "integer":
        return int(said)
    if param.kind == "number" and not math.isfinite(value := float(said)):
        raise ValueError(said)
    return value if param.kind == "number" else said
