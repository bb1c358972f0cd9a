"""The form of the control page: its fields are made from the catalogue when an intervention is chosen."""

from typing import Any

from dash import ALL, MATCH, Dash, Input, Output, State, ctx, dcc, html, no_update

from entrostat.dashboard import forms
from entrostat.dashboard.pages import control_parts as parts
from entrostat.wire.client import Client
from entrostat.wire.interventions import BY_NAME
from entrostat.wire.messages import DesiredState


def layout() -> html.Aside:
    """One form for everything that can be switched on, changed, or approved with changes."""
    over = [{"label": "each micro-batch", "value": "batch"}, {"label": "the whole last step", "value": "step"}]
    until = dcc.Input(id="form-until", type="text", inputMode="numeric", placeholder="no end", autoComplete="off")
    return html.Aside(
        [
            html.H2("Switch on", id="form-title"),
            dcc.Dropdown(
                forms.options(None), id="form-name", placeholder="intervention",
                maxHeight=420, clearable=False,
            ),
            html.Div(id="form-about"),
            html.Div(id="form-fields"),
            html.Div(
                [html.Span("tokens chosen over", className="name"), dcc.RadioItems(over, "batch", id="form-selection")],
                id="form-selection-field", className="field", hidden=True,
            ),
            html.Div(
                [
                    html.Label([html.Span("last step", className="name"), until]),
                    html.Span("The trainer switches it off after this step by itself.", className="hint"),
                ],
                className="field",
            ),
            html.Button("switch on", id="form-submit", n_clicks=0, className="button primary"),
            html.Div(id="form-answer", role="status"),
        ],
        className="card form", id="control-form",
    )  # fmt: skip


def register(app: Dash, client: Client) -> None:
    """Choosing, checking while typing, submitting."""

    @app.callback(
        Output("form-name", "value"),
        Output("form-title", "children"),
        Output("form-about", "children"),
        Output("form-fields", "children"),
        Output("form-selection", "value"),
        Output("form-selection-field", "hidden"),
        Output("form-until", "value"),
        Output("form-submit", "children"),
        Output("form-proposal", "data"),
        Output("form-answer", "children", allow_duplicate=True),
        Input("form-name", "value"),
        Input({"type": "change", "name": ALL}, "n_clicks"),
        Input({"type": "edit", "proposal": ALL}, "n_clicks"),
        State("control-held", "data"),
        prevent_initial_call=True,
    )
    def _choose(chosen: str | None, _: list[int], __: list[int], held: dict[str, Any]) -> Any:
        cause = ctx.triggered_id
        if not ctx.triggered[0]["value"]:  # a button that has just been drawn
            return [no_update] * 10
        desired = DesiredState.model_validate(held.get("desired", {}))
        proposal = None
        if isinstance(cause, dict) and cause["type"] == "edit":
            proposal = next((p for p in desired.proposals if p.proposal_id == cause["proposal"]), None)
            wanted = proposal.intervention if proposal else None
            chosen = wanted.name if wanted else chosen
        else:
            chosen = cause["name"] if isinstance(cause, dict) else chosen
            wanted = next((i for i in desired.interventions if i.name == chosen), None)
        if chosen not in BY_NAME:  # nothing chosen, or what only a newer server knows
            return [no_update] * 10
        intervention = BY_NAME[chosen]
        verb = "approve" if proposal else "change" if wanted else "switch on"
        until = str(wanted.until_step) if wanted and wanted.until_step is not None else ""
        return (
            chosen,
            f"{verb.capitalize()}: {chosen}",
            forms.about(intervention),
            forms.fields(intervention, wanted.params if wanted else {}, held.get("bounds")),
            wanted.selection if wanted else "batch",
            not intervention.has_threshold or proposal is not None,
            until,
            verb,
            proposal.proposal_id if proposal else None,
            None,
        )

    @app.callback(
        Output({"type": "param-trouble", "name": MATCH}, "children"),
        Input({"type": "param", "name": MATCH}, "value"),
        State({"type": "param", "name": MATCH}, "id"),
        State("form-name", "value"),
    )
    def _check(typed: Any, identity: dict[str, str], name: str | None) -> str:
        param = identity["name"]
        return forms.read(name, {param: typed})[1].get(param, "") if name in BY_NAME else ""

    @app.callback(
        Output("form-answer", "children"),
        Output("control-done", "data"),
        Output("control-because", "value"),
        Input("form-submit", "n_clicks"),
        State("form-name", "value"),
        State({"type": "param", "name": ALL}, "value"),
        State({"type": "param", "name": ALL}, "id"),
        State("form-selection", "value"),
        State("form-until", "value"),
        State("form-proposal", "data"),
        State("control-person", "value"),
        State("control-because", "value"),
        State("control-run", "data"),
        State("control-done", "data"),
        prevent_initial_call=True,
        running=[(Output("form-submit", "disabled"), True, False)],
    )
    def _submit(
        _: int,
        name: str | None,
        values: list[Any],
        ids: list[dict[str, str]],
        selection: str,
        until: str | None,
        proposal: str | None,
        person: str | None,
        because: str | None,
        run: str,
        done: int,
    ) -> Any:
        if name not in BY_NAME:
            return parts.refusal("Choose an intervention."), no_update, no_update
        params, wrong = forms.read(name, {i["name"]: v for i, v in zip(ids, values, strict=True)})
        missing = _unsigned(person, because)
        if missing or wrong:
            return parts.refusal(". ".join([*wrong.values(), *missing]) + "."), no_update, no_update
        try:
            last = forms.step_of(until)
        except ValueError as error:
            return parts.refusal(str(error)), no_update, no_update
        who, why = str(person).strip(), str(because).strip()
        over = selection if BY_NAME[name].has_threshold else "batch"
        if proposal:
            answer = parts.tried(lambda: client.decide(run, proposal, True, who, because=why, params=params))
        else:
            answer = parts.tried(
                lambda: client.switch_on(run, name, why, who, params=params, selection=over, until_step=last)
            )
        if answer is not None:
            return answer, no_update, no_update
        return parts.confirmation(f"{name} is asked for, from the next step on."), done + 1, ""


def _unsigned(person: str | None, because: str | None) -> list[str]:
    """What is missing of the signature."""
    missing = [] if (person or "").strip() else ["Say who you are, above"]
    return missing if (because or "").strip() else [*missing, "Say why, above: the reason goes into the run's record"]
