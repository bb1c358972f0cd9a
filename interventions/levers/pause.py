"""Wait before the next step, until it is switched off or the time is over."""

from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase


class PauseParams(Params):
    """How long at most: a pause that nobody ends must not hold the machines for ever."""

    at_most_s: float = Field(3600.0, gt=0.0, le=604_800.0, description="Longest wait in seconds; then it goes on.")


METHOD = Method("pause", Phase.trainer, PauseParams, None, "a lever of every trainer", excludes={})
