"""What the responses say: form, and kinds of tokens with their entropy (Exchange App. B, C)."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.step import Reading, StepData
from entrostat.wire.declared.text import CATEGORIES
from entrostat.wire.mergeable import Part, mean_of


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """The rates over responses with tokens; ``share_*`` and ``entropy_*`` (nats) of each category over tokens."""
    if step.reading is None:
        return {}
    return _rates(step.reading, step.length > 0) | _by_category(step.reading, step)


def _rates(reading: Reading, with_tokens: np.ndarray) -> dict[str, Part]:
    found = {
        "format_violation_rate": mean_of(reading.format_violation[with_tokens]),
        "repetition_rate": mean_of(reading.repetition[with_tokens]),
    }
    if reading.language_mixing is not None:
        found["language_mixing_rate"] = mean_of(reading.language_mixing[with_tokens])
    return found


def _by_category(reading: Reading, step: StepData) -> dict[str, Part]:
    found = {}
    for number, name in enumerate(CATEGORIES):
        is_in = reading.category == number
        found[f"share_{name}"] = mean_of(is_in)
        found[f"entropy_{name}"] = mean_of(step.entropy[is_in])
    return found
