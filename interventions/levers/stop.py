"""End the training in order at the next step boundary, with a checkpoint if one is wanted."""

from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase


class StopParams(Params):
    """Whether the trainer saves a checkpoint before it ends."""

    save: bool = Field(True, description="Save a checkpoint first.")


METHOD = Method("stop", Phase.trainer, StopParams, None, "a lever of every trainer", excludes={})
