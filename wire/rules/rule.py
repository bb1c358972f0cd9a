"""A rule: when, what, until; or a signal to be held by one parameter."""

import fnmatch
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from entrostat.wire.interventions import ParamValue, named
from entrostat.wire.rules.conditions import (
    MAX_CONDITIONS,
    MAX_WINDOW,
    Condition,
    Number,
    RelativeTo,
    RuleModel,
    SignalName,
    parts,
)
from entrostat.wire.rules.vocabulary import known_intervention, known_params, nearest

RuleName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
"""Lower-case letters, digits, '.', '_' and '-', at most 64."""
InterventionName = Annotated[str, AfterValidator(known_intervention)]
Text = Annotated[str, StringConstraints(max_length=2000)]
DONE_ONCE = ("save_checkpoint", "stop")
"""Done once, at a step boundary: a rule that names no end takes them back after ``TAKEN_BACK_AFTER`` steps."""
TAKEN_BACK_AFTER = 20
DEFAULT_COOLDOWN = 50


class RunFilter(RuleModel):
    """Which runs a rule is for.

    Args:
        name: a pattern with ``*`` and ``?`` that the run's name fits.
        tags: that the run has, with these values.
    """

    name: str = Field(default="*", max_length=200)
    tags: dict[str, str] = Field(default_factory=dict)

    def fits(self, run: str, tags: dict[str, str]) -> bool:
        """Whether a run is meant."""
        return fnmatch.fnmatchcase(run, self.name) and all(tags.get(k) == v for k, v in self.tags.items())


class Do(RuleModel):
    """The intervention that a rule switches on or proposes, as in ``entrostat interventions``."""

    intervention: InterventionName
    params: dict[str, ParamValue] = Field(default_factory=dict)
    selection: Literal["batch", "step"] = "batch"

    @model_validator(mode="after")
    def _as_declared(self) -> "Do":
        known_params(self.intervention, self.params)
        if self.selection == "step" and not named(self.intervention).has_threshold:
            raise ValueError(f"selection: step is for interventions with a threshold; {self.intervention} has none")
        return self


class Steps(RuleModel):
    """``until: {steps: 100}``: so many steps from when it is expected to act; the trainer keeps to it by itself."""

    steps: int = Field(ge=1, le=10_000_000)


class _Named(RuleModel):
    """What every rule has."""

    name: RuleName
    runs: RunFilter = Field(default_factory=RunFilter)
    mode: Literal["advise", "act"] = Field(
        default="advise", description="advise: a person approves; act: done where the run lets rules act."
    )
    cooldown_steps: int = Field(
        default=DEFAULT_COOLDOWN, ge=0, le=10_000_000, description="Steps of rest after it ended."
    )
    evidence: Text = Field(default="", description="Why these numbers: a source.")
    meaning: Text = Field(default="", description="What has happened when it fires.")


class Rule(_Named):
    """When a condition holds, an intervention is switched on or proposed, until another holds.

    Without ``do`` it only tells. Without ``until`` it stays on until a person switches it off; a rule that only tells
    ends when its condition is false again.
    """

    when: Condition
    do: Do | None = None
    until: Condition | Steps | None = None
    max_firings: int | None = Field(default=None, ge=1, description="So often in a run, then never again.")

    @field_validator("until", mode="wrap")
    @classmethod
    def _steps_or_condition(cls, value: Any, read: Any) -> Any:
        # Of a plain union the error would list both sides; which one is meant shows in its only key.
        return Steps.model_validate(value) if isinstance(value, dict) and "steps" in value else read(value)

    @model_validator(mode="after")
    def _not_too_large(self) -> "Rule":
        number = sum(1 for condition in self.conditions for _ in parts(condition))
        if number > MAX_CONDITIONS:
            raise ValueError(f"{number} conditions: at most {MAX_CONDITIONS} are taken")
        return self

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """``when``, and ``until`` where that is a condition."""
        return (self.when,) if self.until is None or isinstance(self.until, Steps) else (self.when, self.until)

    @property
    def on_steps(self) -> int | None:
        """How long what it does is on, where that is a number of steps."""
        if isinstance(self.until, Steps):
            return self.until.steps
        is_brief = self.until is None and self.do is not None and self.do.intervention in DONE_ONCE
        return TAKEN_BACK_AFTER if is_brief else None


class Target(RuleModel):
    """``hold: {signal: entropy_mean, at: 0.35, band: 0.05}``: near enough is within ``at`` +- ``band``."""

    signal: SignalName
    at: Number
    band: float = Field(gt=0, allow_inf_nan=False, description="In the unit of ``at``.")
    window: int = Field(default=1, ge=1, le=MAX_WINDOW, description="The mean of so many recorded steps is held.")
    relative_to: RelativeTo = "absolute"


class Actuator(RuleModel):
    """``with: {intervention: kl_cov, param: beta, min: 0, max: 4, gain: 0.5}``: what it is held by.

    Args:
        params: the intervention's other parameters.
        neutral: the value at which the intervention is off; ``min`` unless given.
        gain: units of the parameter for a unit of the signal below the band; negative where more of the parameter
            lowers the signal.
        integral: share of ``gain`` times error added at each step, for as long as the error lasts.
        max_change_per_step: a tenth of the range unless given.
    """

    intervention: InterventionName
    param: str
    params: dict[str, ParamValue] = Field(default_factory=dict)
    selection: Literal["batch", "step"] = "batch"
    min: Number
    max: Number
    neutral: Number | None = None
    gain: Number
    integral: float = Field(default=0.05, ge=0, le=1)
    max_change_per_step: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _as_declared(self) -> "Actuator":
        if self.min >= self.max:
            raise ValueError(f"min ({self.min:g}) must be below max ({self.max:g})")
        if self.gain == 0:
            raise ValueError("gain 0 would never move anything")
        if self.neutral is not None and not self.min <= self.neutral <= self.max:
            raise ValueError(f"neutral ({self.neutral:g}) must be from min to max")
        declared = {p.name: p for p in named(self.intervention).params}
        if self.param not in declared:
            raise ValueError(f"{self.intervention} has no parameter {self.param!r}{nearest(self.param, declared)} (it "
                             f"has {', '.join(declared) or 'none'})")  # fmt: skip
        if declared[self.param].kind != "number":
            raise ValueError(f"{self.intervention}.{self.param} is no real number and cannot be moved")
        if self.param in self.params:
            raise ValueError(f"{self.param} is what is moved: leave it out of params")
        for value in (self.min, self.max):
            if value != self.off_at:  # at that value the intervention is off: its bounds do not matter
                known_params(self.intervention, self.params | {self.param: value})
        known_params(self.intervention, self.params)
        if self.selection == "step" and not named(self.intervention).has_threshold:
            raise ValueError(f"selection: step is for interventions with a threshold; {self.intervention} has none")
        return self

    @property
    def off_at(self) -> float:
        """The value at which the intervention is off, and with which it starts."""
        return self.min if self.neutral is None else self.neutral

    @property
    def rate(self) -> float:
        """Most that the parameter moves in a step."""
        return (self.max - self.min) / 10 if self.max_change_per_step is None else self.max_change_per_step


class HoldRule(_Named):
    """The thermostat: a signal is held at a level by one parameter, in a closed loop (``server/rules/hold.py``)."""

    hold: Target
    with_: Actuator = Field(alias="with")


AnyRule = Rule | HoldRule


def is_hold(document: Any) -> bool:
    """Whether a document is meant to be a ``HoldRule``."""
    return isinstance(document, dict) and ("hold" in document or "with" in document)


def read_rule(document: Any) -> AnyRule:
    """A rule from its JSON document. Raises pydantic's ValidationError."""
    return HoldRule.model_validate(document) if is_hold(document) else Rule.model_validate(document)


def document_of(rule: AnyRule) -> dict[str, Any]:
    """The rule's JSON document, as short as a person would write it."""
    document: dict[str, Any] = rule.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return document
