"""The catalogue of interventions, for those who have no torch: what rules and forms may name, and within what bounds.

``interventions.json`` is made from ``entrostat.interventions`` by ``make docs``; a test holds one against the other.
"""

import functools
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from entrostat.wire.errors import BadParameter

ParamValue = float | int | bool | str | None
_TYPES: dict[str, type] = {"number": float, "integer": int, "boolean": bool, "string": str, "null": type(None)}
_BOUNDS = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}


class Param(BaseModel):
    """One parameter of an intervention.

    Args:
        name: as in rules.
        kind: its JSON type.
        meaning: one sentence.
        default: the paper's value; None where it may be left out.
        bounds: of ``ge``, ``gt``, ``le`` and ``lt`` those it has.
        choices: where only these texts are allowed.
        is_optional: whether null is allowed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kind: Literal["number", "integer", "boolean", "string"]
    meaning: str
    default: ParamValue = None
    bounds: dict[str, float] = Field(default_factory=dict)
    choices: tuple[str, ...] = ()
    is_optional: bool = False

    @property
    def allowed(self) -> str:
        """What it may be, for people: ``0 < x <= 1``, ``uniform or forking``, ``true or false``."""
        if self.choices:
            return " or ".join(self.choices)
        if self.kind == "boolean":
            return "true or false"
        low = [f"{self.bounds[b]:g} {sign} " for b, sign in (("ge", "<="), ("gt", "<")) if b in self.bounds]
        high = [f" {sign} {self.bounds[b]:g}" for b, sign in (("le", "<="), ("lt", "<")) if b in self.bounds]
        said = "".join(low) + {"integer": "n", "string": "text"}.get(self.kind, "x") + "".join(high)
        return f"{said}, or nothing" if self.is_optional else said


class Intervention(BaseModel):
    """One intervention, as its module declares it.

    Args:
        name: as in rules, SQL and docs.
        acts_on: the trainer, the sampling, or a phase of the policy loss.
        meaning: one sentence.
        source: paper and equation.
        needs: what the batch must bring beside log-probs, advantages and mask, at the default parameters.
        excludes: those it cannot be combined with, and why.
        params: its parameters.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    acts_on: str
    meaning: str
    source: str
    needs: tuple[str, ...] = ()
    excludes: dict[str, str] = Field(default_factory=dict)
    params: tuple[Param, ...] = ()

    @property
    def has_threshold(self) -> bool:
        """Whether its tokens can be chosen over the whole step and all ranks."""
        return any(p.name == "threshold" for p in self.params)

    def checked(self, params: dict[str, Any]) -> dict[str, ParamValue]:
        """``params`` as they will be used: those given, converted; those left out stay out.

        Raises:
            BadParameter: an unknown name or a value out of bounds; names the intervention, the parameter and what it
                may be.
        """
        try:
            model = _model_of(self.name)(**params)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            known = ", ".join(p.name for p in self.params) or "none"
            raise BadParameter(f"{self.name}.{where}: {first['msg']}; its parameters are {known}") from None
        return model.model_dump(exclude_unset=True)

    def outside(self, params: Mapping[str, Any], bounds: Mapping[str, tuple[float, float]]) -> str | None:
        """Which parameter is outside the user's own bounds, as a sentence; None where none is.

        Args:
            params: those given. The others take their defaults, which must be inside too.
            bounds: ``intervention.parameter`` -> lowest and highest value.
        """
        for name, value in ({p.name: p.default for p in self.params} | dict(params)).items():
            low, high = bounds.get(f"{self.name}.{name}", (-math.inf, math.inf))
            if isinstance(value, int | float) and not low <= value <= high:
                whose = "" if name in params else " (its default)"
                said = f"{self.name}.{name}={value:g}{whose}"
                return f"{said} is outside what the user of this run allows, {low:g} to {high:g}"
        return None


def _param(name: str, schema: dict[str, Any]) -> Param:
    kinds = schema.get("anyOf", [schema])
    inner = next(k for k in kinds if k["type"] != "null")
    return Param(
        name=name,
        kind=inner["type"],
        meaning=schema.get("description", ""),
        default=schema.get("default"),
        bounds={short: inner[long] for long, short in _BOUNDS.items() if long in inner},
        choices=tuple(inner.get("enum", ())),
        is_optional=any(k["type"] == "null" for k in kinds),
    )


def params_of(schema: dict[str, Any]) -> tuple[Param, ...]:
    """The parameters that a JSON schema of flat properties describes."""
    return tuple(_param(name, described) for name, described in schema.get("properties", {}).items())


@functools.cache
def _model_of(name: str) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for p in BY_NAME[name].params:
        kind: Any = Literal[p.choices] if p.choices else _TYPES[p.kind]
        bounds: dict[str, Any] = dict(p.bounds)
        fields[p.name] = (kind | None if p.is_optional else kind, Field(p.default, **bounds))
    made: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return made


def _read() -> tuple[Intervention, ...]:
    text = files("entrostat.wire").joinpath("interventions.json").read_text("utf-8")
    return TypeAdapter(tuple[Intervention, ...]).validate_json(text)


INTERVENTIONS = _read()
BY_NAME = {i.name: i for i in INTERVENTIONS}


def named(name: str) -> Intervention:
    """The intervention of that name.

    Raises:
        BadParameter: there is none; names those there are.
    """
    if name not in BY_NAME:
        raise BadParameter(f"unknown intervention {name!r}: there are {', '.join(sorted(BY_NAME))}")
    return BY_NAME[name]


def exclusion(one: str, other: str) -> str | None:
    """Why two interventions cannot be on together; None where they can, or where one is of a newer entrostat."""
    for first, second in ((one, other), (other, one)):
        known = BY_NAME.get(first)
        if known is not None and second in known.excludes:
            return known.excludes[second]
    return None
