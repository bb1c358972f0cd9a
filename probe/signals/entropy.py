"""Entropy of the policy: mean, by the sign of the advantage, by position (Exchange Eq. 3, Sec. 3, Fig. 6)."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.step import Ints, StepData
from entrostat.wire.declared.entropy import NUM_POSITIONS
from entrostat.wire.mergeable import Part, mean_of

Curve = tuple[Ints, np.ndarray]
"""Tokens [NUM_POSITIONS] int64 and the sums of their values [NUM_POSITIONS] float64, by bin of relative position."""


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``entropy_mean``; ``entropy_pos`` and ``entropy_neg`` where there are advantages. Nats."""
    found = {"entropy_mean": mean_of(step.entropy)}
    if step.advantage is not None:
        found["entropy_pos"] = mean_of(step.entropy[step.advantage > 0])
        found["entropy_neg"] = mean_of(step.entropy[step.advantage < 0])
    return found


def curves(step: StepData) -> dict[str, Curve]:
    """``entropy_by_position``, and by the sign of the advantage where there is one."""
    # Positions count every token of the response, a tool's included; so does the length they are relative to.
    last = np.zeros(step.num_responses, dtype=np.int64)
    np.maximum.at(last, step.seq, step.pos)
    place = step.pos * NUM_POSITIONS // (last[step.seq] + 1)
    everyone = np.ones(step.entropy.size, bool)
    found = {"entropy_by_position": _curve(step, place, everyone)}
    if step.advantage is not None:
        found["entropy_by_position_pos"] = _curve(step, place, step.advantage > 0)
        found["entropy_by_position_neg"] = _curve(step, place, step.advantage < 0)
    return found


def _curve(step: StepData, place: Ints, chosen: np.ndarray) -> Curve:
    where = place[chosen]
    count = np.bincount(where, minlength=NUM_POSITIONS)
    return count, np.bincount(where, weights=step.entropy[chosen], minlength=NUM_POSITIONS)
