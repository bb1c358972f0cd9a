"""Perplexity of responses (Exchange Eq. 7); its z-score within a prompt's group is made by the views."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.step import StepData
from entrostat.wire.mergeable import Part, mean_of


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``ppl``: exp(-mean log-prob) of a response, mean over responses with tokens."""
    ln_ppl = -step.mean_by_response(step.logp)
    return {"ppl": mean_of(np.exp(ln_ppl[np.isfinite(ln_ppl)]))}
