"""Rules over HTTP: list, put, remove, check a text, replay on a recorded run."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from entrostat.server.answers import Json
from entrostat.server.auth import require
from entrostat.server.control.who import Asker
from entrostat.server.http_errors import BODY, responses
from entrostat.server.json_bodies import JsonRoute
from entrostat.server.rules import sql
from entrostat.server.rules.engine import Engine
from entrostat.server.rules.needs import needs_of
from entrostat.server.rules.replay import replay
from entrostat.storage.rules import HeldRule
from entrostat.storage.store import Store
from entrostat.wire.errors import BadParameter
from entrostat.wire.messages import RunId
from entrostat.wire.rules.rule import AnyRule, RuleName, document_of, read_rule
from entrostat.wire.rules.text import MAX_CHARS, Problem, parse, problems_of

_READ = [Depends(require("read"))]
_CONTROL = [Depends(require("control"))]
_EXAMPLE: dict[str, Any] = {
    "name": "collapse-guard",
    "when": {"signal": "d_collapse", "above": 0.25, "for_steps": 10},
    "do": {"intervention": "scope", "params": {"q": 0.05, "lam": 0.1}},
    "until": {"signal": "d_collapse", "below": 0.15, "for_steps": 20},
    "mode": "advise",
}


class RuleAnswer(BaseModel):
    """A rule that the server holds."""

    name: str
    version: int
    updated: str = Field(description="ISO 8601, UTC.")
    rule: dict[str, Any]


class Rules(BaseModel):
    """The rules, by name."""

    rules: list[RuleAnswer]


class Text(BaseModel):
    """Rules as YAML or JSON."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(max_length=MAX_CHARS)


class OptionalText(BaseModel):
    """Rules as YAML or JSON; without them those that the server holds."""

    model_config = ConfigDict(extra="forbid")
    text: str | None = Field(default=None, max_length=MAX_CHARS)


class Mistake(BaseModel):
    """What is wrong, and where."""

    where: str
    message: str


class Checked(BaseModel):
    """The rules that could be read, and what could not."""

    rules: list[dict[str, Any]]
    problems: list[Mistake]


class Replayed(BaseModel):
    """What the rules would have done, in order."""

    run: str
    actions: list[dict[str, Any]]


def router(store: Store, engine: Engine) -> APIRouter:
    """The routes of rules."""
    routes = APIRouter(prefix="/v1", tags=["rules"], route_class=JsonRoute)

    @routes.get("/rules", dependencies=_READ, responses=responses(), response_model=Rules, summary="List rules")
    def list_rules() -> Json:
        """The rules that the server holds every run to."""
        return Json({"rules": [_answer(held) for held in store.rules.held()]})

    @routes.put(
        "/rules/{name}",
        dependencies=_CONTROL,
        responses=responses(*BODY),
        response_model=RuleAnswer,
        summary="Put a rule",
    )
    def put_rule(
        name: RuleName,
        rule: Annotated[dict[str, Any], Body(openapi_examples={"a rule": {"value": _EXAMPLE}})],
        asker: Asker,
    ) -> Json:
        """Take a rule, as the next version of its name. It begins with the steps that come from now on."""
        read = _read(name, rule)
        held = store.rules.put({name: document_of(read)}, asker)[0]
        engine.rules_changed()
        return Json(_answer(held))

    @routes.delete(
        "/rules/{name}",
        dependencies=_CONTROL,
        responses=responses((404, "No such rule.")),
        status_code=204,
        summary="Remove a rule",
    )
    def remove_rule(name: RuleName, asker: Asker) -> None:
        """Remove a rule; what it has on goes off, what it proposed is withdrawn."""
        store.rules.remove(name, asker)
        engine.rules_changed()

    @routes.post(
        "/rules/check", dependencies=_READ, responses=responses(*BODY), response_model=Checked, summary="Check rules"
    )
    def check_rules(given: Text) -> Json:
        """Read rules without keeping them; every mistake is named by its rule, field and line."""
        parsed = parse(given.text)
        problems = [*parsed.problems, *(p for rule in parsed.rules for p in sql_problems(store, rule))]
        return Json(
            {
                "rules": [document_of(rule) for rule in parsed.rules],
                "problems": [{"where": p.where, "message": p.message} for p in problems],
            }
        )

    @routes.post(
        "/runs/{run}/rules/replay",
        dependencies=_READ,
        responses=responses(*BODY, (404, "No such run."), (408, "SQL conditions took too long.")),
        response_model=Replayed,
        summary="Where would rules have fired?",
    )
    def replay_rules(run: RunId, given: OptionalText) -> Json:
        """Evaluate rules on every recorded step of a run, as if nothing had been on; nothing is changed."""
        if not (given.text or "").strip():
            rules: list[AnyRule] = [read_rule(held.document) for held in store.rules.held()]
        else:
            parsed = parse(given.text or "")
            _refuse(list(parsed.problems))
            rules = list(parsed.rules)
        return Json({"run": run, "actions": replay(store, run, rules)})

    def _read(name: str, document: dict[str, Any]) -> AnyRule:
        if document.setdefault("name", name) != name:
            raise BadParameter(f"the rule calls itself {document['name']!r}, the address {name!r}: use one name")
        try:
            rule = read_rule(document)
        except ValidationError as error:
            raise BadParameter(_in_one(problems_of(error, name))) from None
        _refuse(sql_problems(store, rule))
        return rule

    return routes


def sql_problems(store: Store, rule: AnyRule) -> list[Problem]:
    """What is wrong with a rule's SQL: it is asked once, of no run."""
    asked = ((text, sql.problem_with(store, text)) for text in needs_of([rule]).sql)
    return [Problem(f"{rule.name}: sql", f"{said} ({text[:80]})") for text, said in asked if said is not None]


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise BadParameter(_in_one(problems))


def _in_one(problems: list[Problem]) -> str:
    return "; ".join(f"{p.where}: {p.message}" for p in problems)


def _answer(held: HeldRule) -> dict[str, Any]:
    return {
        "name": held.name,
        "version": held.version,
        "updated": held.updated.isoformat() + "+00:00",
        "rule": held.document,
    }
