"""What a rule can ask of a run at a step. Each condition is true, false, or unknown (``server/rules/truth.py``)."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from entrostat.wire.rules.vocabulary import known_signal

MAX_WINDOW = 1000
MAX_CONDITIONS = 50
"""Of one rule, all levels together."""

SignalName = Annotated[str, AfterValidator(known_signal)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class RuleModel(BaseModel):
    """Base of all parts of a rule: unknown fields are refused, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class AtStep(RuleModel):
    """``relative_to: {step: 100}``: the signal's own value at that step."""

    step: int = Field(ge=0)


RelativeTo = Literal["absolute", "baseline"] | AtStep


class Lasting(RuleModel):
    """A condition that may have to last."""

    for_steps: int = Field(
        default=1, ge=1, le=100_000, description="It must have been known and true at so many recorded steps in a row."
    )


class SignalIs(Lasting):
    """``{signal: d_collapse, above: 0.25, for_steps: 10}``: a signal, or a statistic of its last steps, over a bound.

    ``relative_to`` divides the statistic by the signal's mean over the run's baseline steps, or by its value at a step;
    what has no such value yet, or 0, is unknown.
    """

    signal: SignalName
    above: Number | None = None
    below: Number | None = None
    window: int = Field(default=1, ge=1, le=MAX_WINDOW, description="Recorded steps, all of them known.")
    statistic: Literal["mean", "min", "max", "last", "slope", "trend"] | None = Field(
        default=None,
        description="mean unless given. slope: least squares, per step. trend: Kendall's tau of value and step, "
        "-1 to 1, the same on every scale.",
    )
    relative_to: RelativeTo = "absolute"

    @model_validator(mode="after")
    def _one_bound(self) -> "SignalIs":
        if (self.above is None) == (self.below is None):
            raise ValueError("say either above or below")
        if self.statistic in ("slope", "trend") and self.window < 3:
            raise ValueError(f"{self.statistic} needs a window of at least 3 steps")
        if self.statistic == "trend" and self.relative_to != "absolute":
            raise ValueError("a trend has no scale: leave relative_to out")
        return self


class Arrival(Lasting):
    """``{signal: entropy_mean, reaches: 0.2, relative_to: baseline, within_steps: 100}``: judged by when it arrives.

    The signal falls by more than its noise over the window, and its trend reaches the level within so many steps from
    now (``storage/analysis/floor_forecast.py``); or it is there already.
    """

    signal: SignalName
    reaches: float = Field(gt=0, allow_inf_nan=False, description="The level it falls to.")
    within_steps: int = Field(ge=1, le=1_000_000)
    window: int = Field(default=50, ge=8, le=MAX_WINDOW)
    relative_to: RelativeTo = "absolute"


class StageIs(Lasting):
    """``{stage: plateau}``: the run's stage, as in ``GET /v1/runs/{run}/analysis``; unknown in its first steps."""

    stage: Literal["rising", "plateau"]


class StepRange(RuleModel):
    """From and to, both included; an end left out is open."""

    from_: int = Field(default=0, ge=0, alias="from")
    to: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _ascending(self) -> "StepRange":
        if self.to is not None and self.to < self.from_:
            raise ValueError(f"to ({self.to}) is before from ({self.from_})")
        return self


class StepIs(RuleModel):
    """``{step: {from: 100, to: 200}}``: always known."""

    step: StepRange


class Sql(Lasting):
    """``{sql: "select ...", above: 3}``: the first value of one SELECT over the public views.

    ``$run`` and ``$step`` stand for the run's name and the step. Without ``above`` or ``below`` the value is true where
    it is true or not 0. No row, null, an error or a timeout is unknown.
    """

    sql: str = Field(min_length=8, max_length=10_000)
    above: Number | None = None
    below: Number | None = None

    @model_validator(mode="after")
    def _at_most_one_bound(self) -> "Sql":
        if self.above is not None and self.below is not None:
            raise ValueError("say either above or below, or neither")
        return self


class All(Lasting):
    """``{all: [...]}``: true where all are; false where one is false, whatever is unknown."""

    all: "tuple[Condition, ...]" = Field(min_length=1, max_length=20)


class Any_(Lasting):
    """``{any: [...]}``: true where one is, whatever is unknown; false where all are false."""

    any: "tuple[Condition, ...]" = Field(min_length=1, max_length=20)


class Not(Lasting):
    """``{not: {...}}``: unknown where what it turns around is."""

    not_: "Condition" = Field(alias="not")


_KINDS = {
    "reaches": Arrival, "signal": SignalIs, "stage": StageIs, "step": StepIs, "sql": Sql, "all": All, "any": Any_,
    "not": Not,
}  # fmt: skip


def _kind_of(value: Any) -> str | None:
    """The tag of a condition, by the key that only its kind has. The ``<>`` keep tags apart from fields in errors."""
    if isinstance(value, BaseModel):
        return next(f"<{key}>" for key, kind in _KINDS.items() if isinstance(value, kind))
    keys = set(value) if isinstance(value, dict) else set()
    return next((f"<{key}>" for key in _KINDS if key in keys or f"{key}_" in keys), None)


Condition = Annotated[
    Annotated[SignalIs, Tag("<signal>")]
    | Annotated[Arrival, Tag("<reaches>")]
    | Annotated[StageIs, Tag("<stage>")]
    | Annotated[StepIs, Tag("<step>")]
    | Annotated[Sql, Tag("<sql>")]
    | Annotated[All, Tag("<all>")]
    | Annotated[Any_, Tag("<any>")]
    | Annotated[Not, Tag("<not>")],
    Discriminator(
        _kind_of,
        custom_error_type="condition",
        custom_error_message="a condition has one of signal, stage, step, sql, all, any, not (signal with above, below "
        "or reaches)",
    ),
]
for _model in (All, Any_, Not):
    _model.model_rebuild()


def parts(condition: Condition, path: str = "") -> "Iterator[tuple[str, Condition]]":
    """The condition and all below it, each with its path: ``""``, ``all.0``, ``all.1.not``."""
    yield path, condition
    for key, child in children(condition):
        yield from parts(child, f"{path}.{key}" if path else key)


def children(condition: Condition) -> "tuple[tuple[str, Condition], ...]":
    """The conditions directly below, each with its key: ``all.0``, ``any.2``, ``not``."""
    if isinstance(condition, All):
        return tuple((f"all.{i}", child) for i, child in enumerate(condition.all))
    if isinstance(condition, Any_):
        return tuple((f"any.{i}", child) for i, child in enumerate(condition.any))
    return (("not", condition.not_),) if isinstance(condition, Not) else ()
