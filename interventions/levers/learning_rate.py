"""The scheduler's learning rate times a factor, on every parameter group."""

from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase


class LearningRateParams(Params):
    """The factor; the scheduler itself goes on as it would."""

    factor: float = Field(0.5, ge=0.0, le=10.0, description="Times the learning rate that the scheduler gives.")


METHOD = Method("learning_rate", Phase.trainer, LearningRateParams, None, "a lever of every trainer", excludes={})
