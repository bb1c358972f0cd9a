"""Per-token statistics from their formulas, one float at a time. Imports nothing of entrostat.

Written from methods.md section 1; NaN handling from the words of ``TokenStats``.
"""

import math
from typing import Any

FLOATS = ("logp", "entropy", "logsumexp", "sum_p2", "self_certainty")
INTS = ("rank", "is_top1", "support95", "num_finite")


def tempered(row, temperature=1.0, softcap=None, logit_scale=None):
    """softcap * tanh(z * scale / softcap) / T; infinities stay what they are."""
    out = []
    for z in row:
        z = z * (1.0 if logit_scale is None else logit_scale)
        if softcap is not None and not math.isinf(z):
            z = softcap * math.tanh(z / softcap)
        out.append(z / temperature)
    return out


def void(n, num_finite, logsumexp=math.nan) -> dict[str, Any]:
    """A row that says nothing."""
    return dict.fromkeys(FLOATS, math.nan) | {
        "logsumexp": logsumexp, "top_ids": [-1] * n, "top_logps": [math.nan] * n,
        "rank": 0, "is_top1": False, "support95": 0, "num_finite": num_finite,
    }  # fmt: skip


def token_stats(row, label, n, **transform) -> dict[str, Any]:
    """Every statistic of one token; ``row``: its V logits as Python floats."""
    z = tempered(row, **transform)
    finite = [i for i in range(len(z)) if math.isfinite(z[i])]
    if label < 0:
        return void(n, 0)
    if any(math.isnan(v) or v == math.inf for v in z):
        return void(n, len(finite))
    if not finite:
        return void(n, 0, -math.inf)
    m = max(z[i] for i in finite)
    lse = m + math.log(math.fsum(math.exp(z[i] - m) for i in finite))
    logps = {i: z[i] - lse for i in finite}
    order = sorted(finite, key=lambda i: (-z[i], i))
    kept = order[:n]
    rank = kept.index(label) + 1 if label in kept else n + 1
    mass, support = 0.0, n + 1
    for place, i in enumerate(kept, start=1):
        mass += math.exp(logps[i])
        if mass >= 0.95:
            support = place
            break
    return {
        "logp": logps.get(label, -math.inf),
        "entropy": -math.fsum(math.exp(v) * v for v in logps.values()),
        "logsumexp": lse,
        "top_ids": kept + [-1] * (n - len(kept)),
        "top_logps": [logps[i] for i in kept] + [-math.inf] * (n - len(kept)),
        "rank": rank,
        "is_top1": rank == 1,
        "sum_p2": math.fsum(math.exp(2 * v) for v in logps.values()),
        "support95": support,
        "self_certainty": -math.log(len(finite)) - math.fsum(logps.values()) / len(finite),
        "num_finite": len(finite),
    }
