"""Save a checkpoint once, at the next step boundary."""

from entrostat.interventions.transform import Method, Params, Phase


class SaveCheckpointParams(Params):
    """No parameters: it is saved where the trainer saves its others."""


METHOD = Method("save_checkpoint", Phase.trainer, SaveCheckpointParams, None, "a lever of every trainer", excludes={})
