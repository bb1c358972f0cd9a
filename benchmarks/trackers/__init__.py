"""The tools that ``caller_thread.py`` measures, one module each. A module imports its tracker only inside a function:
each tracker is in an environment of its own."""

from trackers import (
    aim,
    clearml,
    entrostat,
    expr_tracker,
    floors,
    kohakuboard,
    mlflow,
    neptune,
    rlprobe,
    rlwatch,
    swanlab,
    tensorboardx,
    trackio,
    wandb,
)
from trackers.tool import Tool

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for module in (
        floors,
        entrostat,
        trackio,
        wandb,
        tensorboardx,
        mlflow,
        aim,
        swanlab,
        kohakuboard,
        clearml,
        neptune,
        expr_tracker,
        rlwatch,
        rlprobe,
    )
    for tool in module.TOOLS
}
