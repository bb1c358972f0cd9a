"""The JSON documents that cross between the processes."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, StringConstraints
from pydantic_core import to_json

from entrostat.wire.tables import PROTOCOL

RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A run's name in URLs and SQL: letters, digits, '.', '_' and '-', at most 128."""
Whole = Annotated[int, Strict()]
"""A whole number; neither true nor a text that looks like one."""
Int32 = Annotated[Whole, Field(le=2**31 - 1)]
"""As the database keeps it."""


def _in_time(moment: datetime) -> datetime:
    if not 1970 <= moment.year <= 9998:  # a year's room for every time zone
        raise ValueError(f"the year {moment.year} is not between 1970 and 9998: is the clock of this machine right?")
    return moment


def _as_text(moment: object) -> object:
    if not isinstance(moment, (str, datetime)):
        raise ValueError("write it as ISO 8601, for example 2026-11-21T12:00:00Z")
    return moment


Moment = Annotated[datetime, BeforeValidator(_as_text), AfterValidator(_in_time)]
"""A time that every zone and the database can say."""
StreamId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""128 random bits, drawn when a probe starts."""


def _not_the_server(producer: str) -> str:
    if producer.strip().lower() == SERVER:
        raise ValueError(f"{SERVER!r} is who wrote the server's own events: take another name")
    return producer


SERVER = "server"
"""The producer of events that the server makes itself; nobody else may take the name."""
Producer = Annotated[str, AfterValidator(_not_the_server)]


class Message(BaseModel):
    """Base of all messages: unknown fields are refused, so that a typing error does not pass for a setting."""

    model_config = ConfigDict(extra="forbid")

    def json_bytes(self) -> bytes:
        """The message as UTF-8 JSON. What JSON cannot say becomes its text, NaN and infinities null."""
        return to_json(self, fallback=str, inf_nan_mode="null")


class Mode(StrEnum):
    """What a run lets happen to it."""

    observe = "observe"
    """Nothing is ever applied."""
    advise = "advise"
    """What a person switched on or approved is applied; what a rule wants is only proposed."""
    act = "act"
    """What persons and rules want is applied."""


Bound = Annotated[float, Strict()]
"""A number; true and false are none."""


class Permissions(Message):
    """What the user allowed at ``attach``; the controller in the trainer holds to it, whatever the server wants."""

    mode: Mode = Mode.observe
    allow: list[str] = Field(default_factory=list, description="Interventions that this trainer can apply and may.")
    bounds: dict[str, tuple[Bound, Bound]] = Field(
        default_factory=dict, description="intervention.parameter -> the user's own lowest and highest value."
    )
    grace_s: float = Field(default=600.0, gt=0.0, description="Silence of the server after which on_lost happens.")
    on_lost: Literal["hold", "revert"] = "hold"


class StreamOpen(Message):
    """What a producer says of itself before its first batch: ``PUT /v1/streams/{stream_id}``. Repeating it is harmless.

    A run goes on when a stream names it with the same ``session_id`` (another rank), as another ``producer``, or with
    ``resume_step`` (from a checkpoint: this rank's earlier rows beyond that step are superseded). A new session that
    names an existing run without any of these gets a run of its own, ``name-2``; the answer says which.
    """

    protocol: Whole = Field(default=PROTOCOL, ge=1, description="Wire version of the producer.")
    run_id: RunId
    session_id: StreamId = Field(description="One for all ranks of one start of the trainer.")
    producer: Producer = Field(default="trainer", max_length=64, description="trainer, rollout, or a name of yours.")
    rank: Int32 = Field(default=0, ge=0)
    world_size: Int32 = Field(default=1, ge=1)
    resume_step: Int32 | None = Field(default=None, ge=0, description="Last step of the checkpoint it resumed from.")
    started: Moment
    host: str = Field(default="", max_length=256)
    pid: Whole = Field(default=0, ge=0, le=2**63 - 1)
    trainer: str = Field(default="", max_length=256, description="Class of the trainer, for example trl.GRPOTrainer.")
    git_commit: str | None = Field(default=None, max_length=64)
    versions: dict[str, str] = Field(default_factory=dict, description="Package -> version.")
    tags: dict[str, str] = Field(default_factory=dict)
    config: dict[str, Any] = Field(default_factory=dict, description="The trainer's settings, JSON values.")
    settings: dict[str, Any] = Field(default_factory=dict, description="The probe's settings.")
    permissions: Permissions = Field(default_factory=Permissions, description="What may be done to the run.")


Author = Annotated[str, StringConstraints(pattern=r"^(rule|person):.{1,128}$")]
"""Who wants it: ``rule:collapse-guard`` or ``person:anna``."""


class ActiveIntervention(Message):
    """One intervention that should be on, and why."""

    name: str
    params: dict[str, float | int | bool | str] = Field(default_factory=dict)
    because: str = Field(max_length=2000, description="The reason, in one sentence.")
    by: Author = "person:unknown"
    selection: Literal["batch", "step"] = Field(
        default="batch",
        description="Over what its top share of tokens is taken: each micro-batch, or the last step of all ranks.",
    )
    until_step: Int32 | None = Field(default=None, ge=0, description="Last step it is on; the trainer keeps to it.")


class Proposal(Message):
    """What a rule would do, waiting for a person."""

    proposal_id: StreamId
    intervention: ActiveIntervention
    step: int = Field(ge=0, description="The step at which it was proposed.")


class DesiredState(Message):
    """What should be on in a run. Versions only grow; version 0 is the empty document of a new run."""

    version: int = Field(default=0, ge=0)
    interventions: list[ActiveIntervention] = Field(default_factory=list)
    proposals: list[Proposal] = Field(default_factory=list)
    is_armed: bool = Field(default=True, description="False: the kill switch is on; nothing is, and no rule acts.")
    updated: datetime | None = None


class Thresholds(Message):
    """Scores that the top share of the last whole step's tokens reached, over all ranks; of ``selection: step``."""

    step: int = Field(ge=0)
    values: dict[str, float] = Field(description="Intervention -> the score from which a token is chosen.")


class StreamOpened(Message):
    """The answer to ``StreamOpen``."""

    run_id: str = Field(description="The run the stream belongs to; may differ from the one asked for.")
    protocol: int = PROTOCOL
    desired: DesiredState
    thresholds: Thresholds | None = None


class Ack(Message):
    """The answer to a batch. It is stored, durably, when this arrives."""

    acked: int = Field(description="The batch's number.")
    duplicate: bool = Field(default=False, description="It was held already; nothing was stored twice.")
    desired: DesiredState
    thresholds: Thresholds | None = None


class ErrorBody(Message):
    """The one shape of an error."""

    error: str = Field(description="Machine-readable, for example malformed_batch.")
    message: str = Field(description="What is wrong and what to change.")
    table: str | None = None
    column: str | None = None
