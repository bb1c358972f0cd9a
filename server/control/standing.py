"""What is in force: the trainer's last words, never what was asked for."""

from collections.abc import Sequence
from typing import Any

from entrostat.storage.effects import Told, activations, refusals
from entrostat.wire.messages import DesiredState


def in_force(events: Sequence[Told]) -> list[dict[str, Any]]:
    """The interventions that the trainer said are on, by the step at which they came on."""
    return [
        {
            "name": a.name,
            "params": dict(a.last.detail.get("params", {})),
            "in_force": dict(a.last.detail.get("in_force", {})),
            "by": str(a.last.detail.get("by", "")),
            "because": str(a.last.detail.get("because", "")),
            "selection": str(a.last.detail.get("selection", "batch")),
            "version": a.last.detail.get("version"),
            "since_step": a.last.step,
        }
        for a in activations(events)
        if a.end is None
    ]


def refused(events: Sequence[Told], desired: DesiredState) -> list[dict[str, Any]]:
    """What the trainer refused of what is wanted now, as it is wanted now."""
    wanted = {i.name: i for i in desired.interventions}
    return [
        {"name": name, "reason": str(event.detail.get("reason", "")), "step": event.step}
        for name, event in refusals(events).items()
        if name in wanted
        and event.detail.get("params") == wanted[name].params
        and event.detail.get("because") == wanted[name].because
    ]
