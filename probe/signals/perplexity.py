"""Perplexity of responses and its z-score within the prompt's group (Exchange Eq. 7)."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.signals.groups import complete_groups
from entrostat.probe.step import Floats, StepData
from entrostat.wire.mergeable import Part, mean_of


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``ppl``; ``ln_ppl_z_pos`` and ``ln_ppl_z_neg`` where there are groups and advantages. No unit."""
    ln_ppl = -step.mean_by_response(step.logp)
    found = {"ppl": mean_of(np.exp(ln_ppl[np.isfinite(ln_ppl)]))}
    z = ln_ppl_z(step, settings.group_size)
    if z is not None and step.response_advantage is not None:
        known = np.isfinite(z)
        found["ln_ppl_z_pos"] = mean_of(z[known & (step.response_advantage > 0)])
        found["ln_ppl_z_neg"] = mean_of(z[known & (step.response_advantage < 0)])
    return found


def ln_ppl_z(step: StepData, group_size: int | None) -> Floats | None:
    """z-score [B] of ln PPL within each complete group: 0 where the group has no spread, NaN where there is no group.

    The spread is the population's (n in the denominator): the group is all there is.
    """
    if step.prompt is None:
        return None
    ln_ppl = -step.mean_by_response(step.logp)
    z = np.full(step.num_responses, np.nan)
    for members in complete_groups(step.prompt, group_size):
        x = ln_ppl[members]
        if not np.isfinite(x).all():
            continue
        spread = x.std()
        # Equal log-probs differ by rounding alone; a spread of that size is none.
        z[members] = (x - x.mean()) / spread if spread > 1e-12 * max(1.0, abs(x.mean())) else 0.0
    return z
