"""How long responses are, and how many were cut (SCOPE App. B)."""

from entrostat.probe.definitions import Settings
from entrostat.probe.step import StepData
from entrostat.wire.mergeable import Part, largest_of, mean_of


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``length_mean``, ``length_max``, ``truncated_rate`` and the counts of tokens and responses."""
    found = {
        "length_mean": mean_of(step.length),
        "num_tokens": Part("sum", (float(step.logp.size),)),
        "num_responses": Part("sum", (float(step.num_responses),)),
        "num_invalid_tokens": Part("sum", (float(step.num_invalid),)),
    }
    if (longest := largest_of(step.length)) is not None:
        found["length_max"] = longest
    if step.truncated is not None:
        found["truncated_rate"] = mean_of(step.truncated)
    return found
