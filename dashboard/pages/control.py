"""A person's hand on a run: what is on and why; switch on, change, switch off, approve, stop all, arm again."""

import time
from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from entrostat.dashboard import forms
from entrostat.dashboard.figures.timeline import timeline_height
from entrostat.dashboard.login import visitor
from entrostat.dashboard.pages import control_form as form
from entrostat.dashboard.pages import control_parts as parts
from entrostat.dashboard.pages.control_state import Shown, fetched, timeline_of
from entrostat.dashboard.pages.parts import POLL_MS, graph, pace_ms, trouble
from entrostat.wire.client import Client
from entrostat.wire.errors import EntrostatError

_UNKNOWN = "unknown"
_ASK_STOP = (
    "Stop all: every intervention of this run is off from the next step on, and no rule acts until it is armed again."
)
_STOP = "function(clicks) { return Boolean(clicks); }"


def layout(run: str) -> html.Div:
    """The page, before the first answer."""
    return html.Div(
        [
            dcc.Interval(id="control-tick", interval=POLL_MS),
            dcc.Store(id="control-run", data=run),
            dcc.Store(id="control-done", data=0),
            dcc.Store(id="control-held", data={}),
            dcc.Store(id="control-digest"),
            dcc.Store(id="form-proposal"),
            html.Div(
                [
                    html.H1(run),
                    html.Div(id="control-status", className="quiet"),
                    dcc.Link("charts", href=f"/run/{run}", className="button"),
                    dcc.Link("rules", href=f"/rules?run={run}", className="button"),
                ],
                className="head",
            ),
            _only_looking(),
            html.Div(id="control-trouble"),
            _signature(),
            html.Div(id="control-answer", role="status"),
            html.Div([_standing(), form.layout()], className="with-form"),
        ]
    )


def _signature() -> html.Div:
    """Who acts, and the buttons that act on everything."""
    signed_in = visitor()
    person = dcc.Input(
        id="control-person", type="text", placeholder="your name", maxLength=100, persistence=signed_in is None,
        persistence_type="local", autoComplete="name", value=signed_in.name if signed_in else None,
        disabled=signed_in is not None,
    )  # fmt: skip
    reason = dcc.Input(id="control-because", type="text", placeholder="reason", maxLength=2000, autoComplete="off")
    title = "Goes into the run's record with everything you do here."
    return html.Div(
        [
            html.Label(["you ", person], className="control", title=title),
            html.Label(["because ", reason], className="control wide", title=title),
            html.Button("Stop all", id="control-stop", n_clicks=0, className="danger"),
            html.Button("Arm again", id="control-arm", n_clicks=0, hidden=True),
            dcc.ConfirmDialog(id="control-stop-sure", message=_ASK_STOP),
        ],
        className="bar",
    )


def _only_looking() -> html.Div | None:
    """What a person reads whose token may not control."""
    signed_in = visitor()
    if signed_in is None or signed_in.may_control:
        return None
    return html.Div(f"{signed_in.name} may look; to act, sign in with a token of scope control.", className="banner")


def _standing() -> html.Div:
    timeline = html.Div(
        [html.Div(html.H3("Timeline"), className="card-head"), graph("control-timeline")],
        className="card", id="control-timeline-card", hidden=True,
    )  # fmt: skip
    return html.Div(
        [html.Div(id="control-proposals"), html.Div(id="control-lines"), timeline, html.Div(id="control-effects")],
        className="main",
    )


def register(app: Dash, client: Client, url: str) -> None:
    """The page's callbacks."""
    app.clientside_callback(
        _STOP,
        Output("control-stop-sure", "displayed"),
        Input("control-stop", "n_clicks"),
        prevent_initial_call=True,
    )
    _register_showing(app, client, url)
    form.register(app, client)
    _register_actions(app, client)


def _register_showing(app: Dash, client: Client, url: str) -> None:
    @app.callback(
        Output("control-status", "children"),
        Output("control-trouble", "children"),
        Output("control-proposals", "children"),
        Output("control-lines", "children"),
        Output("control-timeline", "figure"),
        Output("control-timeline", "style"),
        Output("control-timeline-card", "hidden"),
        Output("control-effects", "children"),
        Output("control-arm", "hidden"),
        Output("control-stop", "hidden"),
        Output("form-name", "options"),
        Output("control-held", "data"),
        Output("control-digest", "data"),
        Output("control-tick", "interval"),
        Input("control-tick", "n_intervals"),
        Input("control-done", "data"),
        State("control-run", "data"),
        State("control-digest", "data"),
    )
    def _show(_: int | None, done: int, run: str, shown: dict[str, str] | None) -> Any:
        started = time.monotonic()
        try:
            got = fetched(client, run)
        except EntrostatError as error:
            return no_update, trouble(error, url), *[no_update] * 12
        # Written again only where something changed: a person may be about to press one of these buttons.
        digests, seen = got.digests, shown or {}
        standing, drawn, effects = (digests[key] != seen.get(key) for key in ("lines", "timeline", "effects"))
        is_armed = got.desired.is_armed
        return (
            parts.status_line(got),
            parts.notice(got),
            parts.proposals(got) if standing else no_update,
            parts.table(got) if standing else no_update,
            timeline_of(got) if drawn else no_update,
            {"height": f"{timeline_height(got.spans)}px"} if drawn else no_update,
            not got.spans and not got.refused,
            parts.effects_table(got.effects) if effects else no_update,
            is_armed,
            not is_armed,
            forms.options(got.allowed) if standing else no_update,
            _held(got) if standing else no_update,
            digests,
            pace_ms(got.detail["status"], time.monotonic() - started),
        )


def _held(got: Shown) -> dict[str, Any]:
    """What the form is filled from."""
    return {
        "desired": got.desired.model_dump(mode="json"),
        "bounds": got.permissions.bounds if got.permissions else {},
    }


def _register_actions(app: Dash, client: Client) -> None:
    @app.callback(
        Output("control-answer", "children"),
        Output("control-done", "data", allow_duplicate=True),
        Output("control-because", "value", allow_duplicate=True),
        Input("control-stop-sure", "submit_n_clicks"),
        Input("control-arm", "n_clicks"),
        Input({"type": "off", "name": ALL}, "n_clicks"),
        Input({"type": "approve", "proposal": ALL}, "n_clicks"),
        Input({"type": "dismiss", "proposal": ALL}, "n_clicks"),
        State("control-person", "value"),
        State("control-because", "value"),
        State("control-run", "data"),
        State("control-done", "data"),
        prevent_initial_call=True,
    )
    def _act(
        _: int | None,
        __: int,
        ___: list[int],
        ____: list[int],
        _____: list[int],
        person: str | None,
        because: str | None,
        run: str,
        done: int,
    ) -> Any:
        # Buttons that have just come onto the page are told of beside the one that was pressed, with a count of 0.
        pressed = [ctx.triggered_prop_ids[told["prop_id"]] for told in ctx.triggered if told["value"]]
        if not pressed:
            return no_update, no_update, no_update
        cause = pressed[0]
        who, why = (person or "").strip(), (because or "").strip()
        if cause == "control-stop-sure":  # an emergency asks for no name
            said = "Everything is asked to be off, from the next step on."
            answer = parts.tried(lambda: client.stop_all(run, why or "stop all", who or _UNKNOWN))
        elif not who:
            return parts.refusal("Say who you are: your name goes into the run's record."), no_update, no_update
        elif cause == "control-arm":
            said = "Armed: things may be switched on again. What was on stays off."
            answer = parts.tried(lambda: client.arm(run, why or "armed again", who))
        elif cause["type"] == "off":
            said = f"{cause['name']} is asked to be off, from the next step on."
            answer = parts.tried(lambda: client.switch_off(run, cause["name"], why or "switched off", who))
        else:
            is_yes = cause["type"] == "approve"
            said = "Approved: asked for from the next step on." if is_yes else "Dismissed."
            answer = parts.tried(lambda: client.decide(run, cause["proposal"], is_yes, who, because=why or None))
        if answer is not None:
            return answer, no_update, no_update
        return parts.confirmation(said), done + 1, ""
