"""What a person sends, and what the answers look like."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from entrostat.wire.messages import DesiredState, Int32, Permissions, Thresholds

Because = Annotated[str, Field(min_length=1, max_length=2000, description="The reason, in one sentence.")]
Person = Annotated[
    str | None,
    Field(min_length=1, max_length=120, description="Who wants it. Needed where the server runs without tokens."),
]
Params = Annotated[
    dict[str, float | int | bool | str | None],
    Field(description="Parameter -> value; those left out, and null, take their defaults."),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SwitchOn(_Body):
    """What is to be on."""

    params: Params = {}
    because: Because
    person: Person = None
    selection: Literal["batch", "step"] = Field(
        default="batch", description="Top share of each micro-batch, or of the last whole step over all ranks."
    )
    until_step: Int32 | None = Field(default=None, ge=0, description="Last step it is on.")
    expected_version: Int32 | None = Field(
        default=None, ge=0, description="Version that was read; 409 where the desired state has changed since."
    )


class Said(_Body):
    """Who and why."""

    because: Because
    person: Person = None


class Decision(_Body):
    """What becomes of a proposal."""

    approve: StrictBool
    person: Person = None
    because: Because | None = None
    params: Params | None = Field(default=None, description="In the place of those proposed.")


class InForce(BaseModel):
    """An intervention as the trainer last acknowledged it."""

    name: str
    params: dict[str, Any] = Field(description="As they were asked for.")
    in_force: dict[str, Any] = Field(description="As they act, with what the server handed down.")
    by: str
    because: str
    selection: str
    version: int | None = Field(description="Version of the desired state that the trainer held to.")
    since_step: int | None = Field(description="First step with these parameters.")


class Refusal(BaseModel):
    """What the trainer refused of what is wanted now."""

    name: str
    reason: str
    step: int | None


class Control(BaseModel):
    """What may be, what should be, and what is."""

    run: str
    is_live: bool
    last_step: int | None
    permissions: Permissions
    desired: DesiredState
    in_force: list[InForce]
    refused: list[Refusal]
    proposals: list[dict[str, Any]] = Field(description="Those of the desired state.")
    thresholds: Thresholds | None = Field(description="What was last handed down for ``selection: step``.")


class Span(BaseModel):
    """A signal over some steps."""

    mean: float | None = Field(description="Null where no step of the span has a value.")
    se: float | None = Field(
        description="Standard deviation over steps / sqrt(steps), steps taken as independent; null below two steps."
    )
    num_steps: int


class Difference(BaseModel):
    """A later span minus the one before."""

    value: float | None
    se: float | None


class SignalEffect(BaseModel):
    """One signal around an activation."""

    signal: str
    before: Span
    on: Span = Field(description="All steps it was on.")
    after: Span
    on_minus_before: Difference
    after_minus_before: Difference


class Change(BaseModel):
    """The parameters from a step on."""

    step: int
    params: dict[str, Any]


class Effect(BaseModel):
    """One activation of an intervention, and the signals around it."""

    name: str
    by: str
    because: str
    params: dict[str, Any] = Field(description="With which it came on.")
    changes: list[Change] = Field(description="Later parameters.")
    selection: str
    start: int = Field(description="First step it was on.")
    end: int | None = Field(description="First step it was off again; null while it is on.")
    why_off: str | None
    also_on: list[str] = Field(description="Other interventions that were on at some time from `before` to `after`.")
    signals: list[SignalEffect]


class Effects(BaseModel):
    """Activations, oldest first. Differences, not causes: nothing here knows what would have been without."""

    run: str
    window: int = Field(description="Steps before and after.")
    effects: list[Effect]
