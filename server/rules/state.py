"""What a rule remembers of a run between steps: a JSON document in the database."""

from typing import Literal

from pydantic import Field

from entrostat.wire.messages import Message

Outcome = Literal["acted", "proposed", "approved", "told"]
"""What came of a firing: done; waiting for a person; done by a person; or only said."""


class Active(Message):
    """A firing that has not ended.

    Args:
        since: the step it fired at.
        ends_at: the step at which it is over, for one that lasts so many steps.
        intervention: what it switched on or proposed; None for a rule that only tells.
    """

    outcome: Outcome
    since: int
    ends_at: int | None = None
    intervention: str | None = None

    def rewound(self, to_step: int) -> "Active":
        """The same where the steps after ``to_step`` come again."""
        back = max(0, self.since - to_step)
        ends_at = None if self.ends_at is None else self.ends_at - back
        return self.model_copy(update={"since": self.since - back, "ends_at": ends_at})


class Controller(Message):
    """A thermostat's memory, in the unit of its parameter.

    Args:
        integral: what the error has added up to.
        output: where the parameter should be; None: at its neutral value.
        written: what was last asked for or proposed; None: nothing.
    """

    integral: float = 0.0
    output: float | None = None
    written: float | None = None


class RuleState(Message):
    """How far a rule has come in a run.

    Args:
        step: last step evaluated; -1 before the first.
        streaks: path of a condition that has to last -> its ``truth.Streak``.
        ended: step at which the last firing ended; the cooldown counts from there.
        num_firings: in this run.
        num_resumes: sessions that had resumed from a checkpoint when this was written.
    """

    step: int = -1
    streaks: dict[str, tuple[int, int | None]] = Field(default_factory=dict)
    active: Active | None = None
    ended: int | None = None
    num_firings: int = 0
    controller: Controller = Field(default_factory=Controller)
    num_resumes: int = 0

    def is_resting(self, step: int, cooldown_steps: int) -> bool:
        """Whether the cooldown of the last firing is not over at ``step``."""
        return self.ended is not None and step - self.ended < cooldown_steps

    def rewound(self, to_step: int, num_resumes: int) -> "RuleState":
        """The state when a session resumed from a checkpoint of ``to_step``: the steps after it come again."""
        active = self.active and self.active.rewound(to_step)
        return self.model_copy(
            update={
                "step": min(self.step, to_step),
                "streaks": {},
                "active": active,
                "ended": None if self.ended is None else min(self.ended, to_step),
                "num_resumes": num_resumes,
            }
        )
