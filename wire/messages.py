"""The JSON documents that cross between the processes."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import to_json

from entrostat.wire.tables import PROTOCOL

RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A run's name in URLs and SQL: letters, digits, '.', '_' and '-', at most 128."""
StreamId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""128 random bits, drawn when a probe starts."""


class Message(BaseModel):
    """Base of all messages: unknown fields are refused, so that a typing error does not pass for a setting."""

    model_config = ConfigDict(extra="forbid")

    def json_bytes(self) -> bytes:
        """The message as UTF-8 JSON. What JSON cannot say becomes its text, NaN and infinities null."""
        return to_json(self, fallback=str, inf_nan_mode="null")


class StreamOpen(Message):
    """What a producer says of itself before its first batch: ``PUT /v1/streams/{stream_id}``. Repeating it is harmless.

    A run goes on when a stream names it with the same ``session_id`` (another rank), as another ``producer``, or with
    ``resume_step`` (from a checkpoint: this rank's earlier rows beyond that step are superseded). A new session that
    names an existing run without any of these gets a run of its own, ``name-2``; the answer says which.
    """

    protocol: int = Field(default=PROTOCOL, description="Wire version of the producer.")
    run_id: RunId
    session_id: StreamId = Field(description="One for all ranks of one start of the trainer.")
    producer: str = Field(default="trainer", max_length=64, description="trainer, rollout, or a name of yours.")
    rank: int = Field(default=0, ge=0)
    world_size: int = Field(default=1, ge=1)
    resume_step: int | None = Field(default=None, ge=0, description="Last step of the checkpoint it resumed from.")
    started: datetime
    host: str = Field(default="", max_length=256)
    pid: int = 0
    trainer: str = Field(default="", max_length=256, description="Class of the trainer, for example trl.GRPOTrainer.")
    git_commit: str | None = Field(default=None, max_length=64)
    versions: dict[str, str] = Field(default_factory=dict, description="Package -> version.")
    tags: dict[str, str] = Field(default_factory=dict)
    config: dict[str, Any] = Field(default_factory=dict, description="The trainer's settings, JSON values.")
    settings: dict[str, Any] = Field(default_factory=dict, description="The probe's settings.")


class ActiveIntervention(Message):
    """One intervention that should be on, and why."""

    name: str
    params: dict[str, float | int | bool | str] = Field(default_factory=dict)
    because: str = Field(description="The rule or the person, and the reason, in one sentence.")


class DesiredState(Message):
    """What should be on in a run. Versions only grow; version 0 is the empty document of a new run."""

    version: int = Field(default=0, ge=0)
    interventions: list[ActiveIntervention] = Field(default_factory=list)
    updated: datetime | None = None


class StreamOpened(Message):
    """The answer to ``StreamOpen``."""

    run_id: str = Field(description="The run the stream belongs to; may differ from the one asked for.")
    protocol: int = PROTOCOL
    desired: DesiredState


class Ack(Message):
    """The answer to a batch. It is stored, durably, when this arrives."""

    acked: int = Field(description="The batch's number.")
    duplicate: bool = Field(default=False, description="It was held already; nothing was stored twice.")
    desired: DesiredState


class ErrorBody(Message):
    """The one shape of an error."""

    error: str = Field(description="Machine-readable, for example malformed_batch.")
    message: str = Field(description="What is wrong and what to change.")
    table: str | None = None
    column: str | None = None
