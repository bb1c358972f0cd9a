"""How long responses are, and how many were cut (SCOPE App. B); how much there was to measure."""

from entrostat.probe.definitions import Settings
from entrostat.probe.step import StepData
from entrostat.wire.mergeable import Part, largest_of, mean_of


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``length_mean``, ``length_max`` (tokens), ``truncated_rate``."""
    found = {"length_mean": mean_of(step.length)}
    if (longest := largest_of(step.length)) is not None:
        found["length_max"] = longest
    if step.truncated is not None:
        found["truncated_rate"] = mean_of(step.truncated)
    return found


def counts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``num_tokens``, ``num_responses``, ``num_invalid_tokens``."""
    return {
        "num_tokens": Part("sum", (float(step.logp.size),)),
        "num_responses": Part("sum", (float(step.num_responses),)),
        "num_invalid_tokens": Part("sum", (float(step.num_invalid),)),
    }
