"""Entropy of the policy: mean, and by the sign of the advantage (Exchange Eq. 3 and Sec. 3)."""

from entrostat.probe.definitions import Settings
from entrostat.probe.step import StepData
from entrostat.wire.mergeable import Part, mean_of


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``entropy_mean``; ``entropy_pos`` and ``entropy_neg`` where there are advantages. Nats."""
    found = {"entropy_mean": mean_of(step.entropy)}
    if step.advantage is not None:
        found["entropy_pos"] = mean_of(step.entropy[step.advantage > 0])
        found["entropy_neg"] = mean_of(step.entropy[step.advantage < 0])
    return found
