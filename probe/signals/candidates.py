"""What the policy gives to its candidates (CaSP Eq. 2, 5, Prop. 3, App. G), exact or estimated from measured rows.

Estimates weight a row by 1 / its inclusion probability (Horvitz and Thompson, 1952); their variance is that of simple
random sampling without replacement in each micro-batch's random stratum. Both are exact where every row was measured.
"""

import numpy as np

from entrostat.probe.definitions import Settings
from entrostat.probe.step import Candidates, Floats, StepData
from entrostat.wire.mergeable import Part, mean_of
from entrostat.wire.signals import RANKS


def parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``sample_logp``, ``top1_rate``; from measured candidates ``rank_logp_n``, ``expected_distinct`` and its bound,
    ``support95_mean``, ``support95_beyond``, ``self_certainty``, with their standard error when sampled.
    """
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
    return found | _over_tokens(step, step.candidates, settings)


def _over_tokens(step: StepData, seen: Candidates, settings: Settings) -> dict[str, Part]:
    distinct, bound = expected_distinct(seen.top_logps, settings.draws)
    values = {
        "expected_distinct": distinct,
        "expected_distinct_bound": bound,
        "support95_mean": seen.support95,
        "support95_beyond": seen.support95 > seen.top_logps.shape[1],
        "self_certainty": seen.self_certainty,
    }
    count = float(step.logp.size)
    return {name: _estimate(np.asarray(value, np.float64), count, seen) for name, value in values.items()}


def expected_distinct(top_logps: Floats, draws: int) -> tuple[Floats, Floats]:
    """Different tokens to expect in ``draws`` draws, sum_v 1 - (1 - p_v)^K (CaSP Prop. 3), and its upper bound.

    Args:
        top_logps: [M, n] log-probs of the measured candidates, -inf where there is none.
        draws: K.

    Returns:
        [M] the sum over the measured candidates, a lower bound; [M] the same plus K x the mass that was not measured.
    """
    p = np.minimum(np.exp(top_logps), 1.0)  # a float32 log-prob may be a little above 0
    with np.errstate(divide="ignore"):
        seen = -np.expm1(draws * np.log1p(-p)).sum(axis=1)
    return seen, seen + draws * np.maximum(1 - p.sum(axis=1), 0.0)


def _rank_logp(step: StepData, seen: Candidates, logp: Floats) -> Part:
    """Lambda^(n) of CaSP Eq. 2: mean over a response's tokens first, then over responses."""
    finite = np.isfinite(logp)  # fewer than n candidates: a masked vocabulary has no rank-n log-prob there
    share = np.where(finite, logp, 0.0) / step.length[step.seq[seen.token]]
    return _estimate(share, float((step.length > 0).sum()), seen)


def _estimate(values: Floats, count: float, seen: Candidates) -> Part:
    """sum of ``values`` [M] over all tokens, from the measured ones, over ``count``."""
    variance = sum(_stratum_variance(values, seen, number) for number in np.unique(seen.micro_batch))
    return Part("estimate", (count, float((values / seen.prob).sum()), variance))


def _stratum_variance(share: Floats, seen: Candidates, number: int) -> float:
    sampled = (seen.micro_batch == number) & ~seen.certain
    count = int(sampled.sum())
    if count < 2 or seen.prob[sampled][0] == 1:
        return 0.0
    prob = float(seen.prob[sampled][0])
    population = count / prob
    return population**2 * (1 - prob) * float(share[sampled].var(ddof=1)) / count
