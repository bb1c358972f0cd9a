"""The routes of the person's hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Query

from entrostat.server.answers import Json
from entrostat.server.auth import require
from entrostat.server.control import standing
from entrostat.server.control.bodies import Control, Decision, Effects, Said, SwitchOn
from entrostat.server.control.changes import Hand
from entrostat.server.control.who import Asker, person_of
from entrostat.server.http_errors import BODY, HttpError, responses
from entrostat.server.json_bodies import JsonRoute
from entrostat.storage.audit import By
from entrostat.storage.store import Store
from entrostat.wire.errors import NotFound
from entrostat.wire.interventions import BY_NAME, INTERVENTIONS, Intervention
from entrostat.wire.messages import DesiredState, RunId, StreamId

DEFAULT_SIGNALS = ("entropy_mean", "reward_mean", "pass_at_1", "d_collapse")
MAX_SIGNALS = 20
_READ = [Depends(require("read"))]
_CONTROL = [Depends(require("control"))]
_NO_RUN = responses((404, "No such run."))
_CHANGE = responses(
    *BODY,
    (403, "The token lacks the scope, the run observes only, or does not allow this intervention."),
    (404, "No such run, intervention or proposal."),
    (409, "Stopped, excluded by what is on, or changed since `expected_version`."),
    (422, "A parameter is unknown or out of bounds; the message names it and what it may be."),
)
_ON_EXAMPLE = {"params": {"lam": 0.05}, "because": "the covariance's tail grows", "person": "anna", "until_step": 400}
_SAID_EXAMPLE = {"because": "the rewards fall", "person": "anna"}
_Name = Annotated[str, Path(max_length=64, description="As in GET /v1/interventions.")]


def router(store: Store) -> APIRouter:
    """The routes with which persons change runs, and see what came of it."""
    routes = APIRouter(prefix="/v1", tags=["control"], route_class=JsonRoute)
    _add_questions(routes, store)
    _add_changes(routes, store)
    return routes


def _add_questions(routes: APIRouter, store: Store) -> None:
    @routes.get("/interventions", dependencies=_READ, responses=responses(), summary="What can be switched on")
    def catalogue() -> list[Intervention]:
        """The catalogue of interventions with their parameters and bounds."""
        return list(INTERVENTIONS)

    @routes.get(
        "/runs/{run}/control",
        dependencies=_READ,
        responses=_NO_RUN,
        response_model=Control,
        summary="What may be, should be and is on",
    )
    def control(run: RunId) -> Json:
        """What the user allowed, what is wanted, and what the trainer last said is in force."""
        permissions, last_step = store.control.allowed_in(run)
        desired, events = store.desired_of(run), store.control.told(run)
        return Json(
            {
                "run": run,
                "is_live": store.status(run) == "live",
                "last_step": last_step,
                "permissions": permissions.model_dump(mode="json"),
                "desired": desired.model_dump(mode="json"),
                "in_force": standing.in_force(events),
                "refused": standing.refused(events, desired),
                "proposals": [p.model_dump(mode="json") for p in desired.proposals],
                "thresholds": store.thresholds(run),
            }
        )

    @routes.get(
        "/runs/{run}/effects",
        dependencies=_READ,
        responses=_NO_RUN,
        response_model=Effects,
        summary="Signals before, while and after something was on",
    )
    def effects(
        run: RunId,
        signals: Annotated[list[str] | None, Query(description="Names, repeated or separated by commas.")] = None,
        window: Annotated[int, Query(ge=1, le=10_000, description="Steps before and after.")] = 20,
    ) -> Json:
        """Means with their standard errors around each activation. Differences, not causes."""
        names = _names(signals) or DEFAULT_SIGNALS
        return Json({"run": run, "window": window, "effects": store.control.effects(run, names, window)})


def _add_changes(routes: APIRouter, store: Store) -> None:
    @routes.put(
        "/runs/{run}/interventions/{name}", dependencies=_CONTROL, responses=_CHANGE, summary="Switch on, or change"
    )
    def switch_on(
        run: RunId,
        name: _Name,
        body: Annotated[SwitchOn, Body(openapi_examples={"hold the top tokens": {"value": _ON_EXAMPLE}})],
        asker: Asker,
    ) -> DesiredState:
        """Want an intervention on, in the place of one of the same name. In force from a step boundary on, not yet."""
        return _hand(store, run, asker, body.person).switch_on(_known(name), body)

    @routes.delete("/runs/{run}/interventions/{name}", dependencies=_CONTROL, responses=_CHANGE, summary="Switch off")
    def switch_off(
        run: RunId,
        name: _Name,
        asker: Asker,
        body: Annotated[Said | None, Body(description="Or as query parameters.")] = None,
        because: Annotated[str | None, Query(max_length=2000)] = None,
        person: Annotated[str | None, Query(max_length=120)] = None,
    ) -> DesiredState:
        """Want it off."""
        why = body.because if body else because
        if not why:
            raise HttpError(422, "invalid_request", "because: say why, in the body or as a query parameter")
        return _hand(store, run, asker, body.person if body else person).switch_off(name, why)

    @routes.post(
        "/runs/{run}/proposals/{proposal_id}",
        dependencies=_CONTROL,
        responses=_CHANGE,
        summary="Approve or dismiss a proposal",
    )
    def decide(run: RunId, proposal_id: StreamId, body: Decision, asker: Asker) -> DesiredState:
        """Approved, it is on in the person's name, with other parameters where some are given."""
        return _hand(store, run, asker, body.person).decide(proposal_id, body)

    @routes.post("/runs/{run}/stop-all", dependencies=_CONTROL, responses=_CHANGE, summary="The kill switch")
    def stop_all(
        run: RunId, body: Annotated[Said, Body(openapi_examples={"stop": {"value": _SAID_EXAMPLE}})], asker: Asker
    ) -> DesiredState:
        """Everything off from the next step on, every proposal gone, and no rule acts until the run is armed again."""
        return _hand(store, run, asker, body.person).stop_all(body.because)

    @routes.post("/runs/{run}/arm", dependencies=_CONTROL, responses=_CHANGE, summary="Undo the kill switch")
    def arm(run: RunId, body: Said, asker: Asker) -> DesiredState:
        """Rules and persons may switch things on again; nothing comes back on by itself."""
        return _hand(store, run, asker, body.person).arm(body.because)


def _hand(store: Store, run: str, asker: By, said: str | None) -> Hand:
    return Hand(store, run, person_of(asker.who, said), replace(asker, said=said))


def _known(name: str) -> str:
    if name not in BY_NAME:
        raise NotFound(f"no intervention {name!r}: there are {', '.join(sorted(BY_NAME))}")
    return name


def _names(signals: Sequence[str] | None) -> tuple[str, ...]:
    found = dict.fromkeys(n.strip() for s in signals or () for n in s.split(",") if n.strip())
    if len(found) > MAX_SIGNALS:
        raise HttpError(422, "invalid_request", f"signals: {len(found)} were asked for, at most {MAX_SIGNALS} may be")
    return tuple(found)
