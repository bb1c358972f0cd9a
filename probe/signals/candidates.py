"""What the policy gives to its candidates: rank-n log-probs and how often the top one was sampled (CaSP Eq. 2, 5)."""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.step import Candidates, Floats, StepData
from entrostat.wire.mergeable import Part, mean_of
from entrostat.wire.signals import RANKS


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``sample_logp``, ``top1_rate``, ``rank_logp_n``. Nats; the last with their standard error when sampled."""
    with_tokens = step.length > 0
    found = {"sample_logp": mean_of(step.mean_by_response(step.logp)[with_tokens])}
    if step.is_top1 is not None:
        found["top1_rate"] = mean_of(step.is_top1)
    elif step.candidates is not None and bool((step.candidates.prob == 1).all()):
        found["top1_rate"] = mean_of(step.candidates.rank == 1)
    if step.candidates is None:
        return found
    for n in RANKS:
        if n <= step.candidates.top_logps.shape[1]:
            found[f"rank_logp_{n}"] = _rank_logp(step, step.candidates, step.candidates.top_logps[:, n - 1])
    return found


def _rank_logp(step: StepData, seen: Candidates, logp: Floats) -> Part:
    """Lambda^(n) of CaSP Eq. 2: mean over a response's tokens first, then over responses.

    Estimated from the measured rows by inverse probability (Horvitz and Thompson); exact when all were measured. The
    variance is that of simple random sampling without replacement in each micro-batch's random stratum.
    """
    finite = np.isfinite(logp)  # fewer than n candidates: a masked vocabulary has no rank-n log-prob there
    share = np.where(finite, logp, 0.0) / step.length[step.seq[seen.token]]
    total = float((share / seen.prob).sum())
    variance = sum(_stratum_variance(share, seen, number) for number in np.unique(seen.micro_batch))
    return Part("estimate", (float((step.length > 0).sum()), total, variance))


def _stratum_variance(share: Floats, seen: Candidates, number: int) -> float:
    sampled = (seen.micro_batch == number) & ~seen.certain
    count = int(sampled.sum())
    if count < 2 or seen.prob[sampled][0] == 1:
        return 0.0
    prob = float(seen.prob[sampled][0])
    population = count / prob
    return population**2 * (1 - prob) * float(share[sampled].var(ddof=1)) / count
