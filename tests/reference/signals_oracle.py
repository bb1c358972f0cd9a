"""Every signal of a step written from its formula: plain loops, float64, nothing of ours imported.

A step is a list of responses; a response is a dict with ``logp``, ``entropy``, ``A`` (one per token), ``old``
(log-probs of the old policy), ``top1`` (bools), ``ranks`` (per token the candidates' log-probs), ``prompt``,
``reward``, ``truncated``, ``logps`` (per token the whole vocabulary's), ``sum_p2``, ``norm`` (of the hidden state),
``rollout`` (log-probs that the rollout engine reported, NaN where it did not).
"""

import math
from itertools import combinations


def _tokens(step, key):
    return [value for response in step for value in response[key]]


def _mean(values):
    values = list(values)
    return sum(values) / len(values)


def entropy_mean(step, sign=0):
    return _mean(h for r in step for h, a in zip(r["entropy"], r["A"]) if sign == 0 or (a > 0 if sign > 0 else a < 0))


def rank_logp(step, n):
    return _mean(_mean(candidates[n - 1] for candidates in r["ranks"]) for r in step)


def sample_logp(step):
    return _mean(_mean(r["logp"]) for r in step)


def top1_rate(step):
    return _mean(float(x) for x in _tokens(step, "top1"))


def cov_tokens(step):
    logp, advantage = _tokens(step, "logp"), _tokens(step, "A")
    mean_logp, mean_a = _mean(logp), _mean(advantage)
    return [(x - mean_logp) * (a - mean_a) for x, a in zip(logp, advantage)]


def cov_top(step, share):
    ordered = sorted(cov_tokens(step), reverse=True)
    return _mean(ordered[: max(1, round(share * len(ordered)))])


def _groups(step):
    groups = {}
    for response in step:
        groups.setdefault(response["prompt"], []).append(response)
    return list(groups.values())


def cov_group(step):
    values = []
    for group in _groups(step):
        x = [_mean(r["logp"]) for r in group]
        y = [math.exp(v) * r["A"][0] for v, r in zip(x, group)]
        values.append(_mean((a - _mean(x)) * (b - _mean(y)) for a, b in zip(x, y)))
    return _mean(values)


def scope_scores(step):
    return [math.exp(x) * (1 - math.exp(x)) * max(a, 0.0) for x, a in zip(_tokens(step, "logp"), _tokens(step, "A"))]


def ppl(step):
    return _mean(math.exp(-_mean(r["logp"])) for r in step)


def ln_ppl_z(step, sign):
    values = []
    for group in _groups(step):
        x = [-_mean(r["logp"]) for r in group]
        spread = math.sqrt(_mean((v - _mean(x)) ** 2 for v in x))
        values += [((v - _mean(x)) / spread if spread else 0.0, r["A"][0]) for v, r in zip(x, group)]
    return _mean(z for z, a in values if (a > 0 if sign > 0 else a < 0))


def reward_std(step):
    rewards = [r["reward"] for r in step]
    return math.sqrt(sum((x - _mean(rewards)) ** 2 for x in rewards) / (len(rewards) - 1))


def zero_variance_groups(step):
    return _mean(float(len({r["reward"] for r in group}) == 1) for group in _groups(step))


def all_right_groups(step):
    return _mean(float(all(r["reward"] >= 1 for r in group)) for group in _groups(step))


def all_wrong_groups(step):
    return _mean(float(all(r["reward"] < 1 for r in group)) for group in _groups(step))


def pass_at_k(step, k):
    """By counting all ways to draw k of a prompt's responses."""
    shares = []
    for group in _groups(step):
        draws = list(combinations([r["reward"] >= 1 for r in group], k))
        shares.append(_mean(float(any(draw)) for draw in draws))
    return _mean(shares)


def clip_fraction(step, low=None, high=None):
    hits = []
    for r in step:
        for x, old, a in zip(r["logp"], r["old"], r["A"]):
            ratio = math.exp(x - old)
            hits.append(
                float(
                    (low is not None and ratio < 1 - low and a < 0) or (high is not None and ratio > 1 + high and a > 0)
                )
            )
    return _mean(hits)


def approx_kl(step):
    gaps = [x - old for r in step for x, old in zip(r["logp"], r["old"])]
    return _mean(math.exp(g) - 1 - g for g in gaps)


def ratio_max(step):
    return max(math.exp(x - old) for r in step for x, old in zip(r["logp"], r["old"]))


def mismatch(step, key):
    """Of the trainer's (``old``) and the rollout engine's log-probs, over tokens whose the engine reported."""
    gaps, probs = [], []
    for r in step:
        for trainer, rollout in zip(r["old"], r["rollout"]):
            if not math.isnan(rollout):
                gaps.append(trainer - rollout)
                probs.append(abs(math.exp(trainer) - math.exp(rollout)))
    return {
        "rollout_kl": lambda: _mean(-d for d in gaps),
        "rollout_kl_k3": lambda: _mean(math.exp(d) - 1 - d for d in gaps),
        "rollout_ratio_mean": lambda: _mean(math.exp(d) for d in gaps),
        "rollout_ratio_max": lambda: max(math.exp(d) for d in gaps),
        "rollout_ratio_out_share": lambda: _mean(float(math.exp(d) < 0.5 or math.exp(d) > 2) for d in gaps),
        "rollout_logp_gap": lambda: _mean(abs(d) for d in gaps),
        "rollout_prob_gap_max": lambda: max(probs),
    }[key]()


def support95(logps, kept):
    """Candidates that reach 0.95, most likely first; more than ``kept`` count as kept + 1."""
    mass = 0.0
    for number, p in enumerate(sorted((math.exp(x) for x in logps), reverse=True), start=1):
        mass += p
        if mass >= 0.95:
            return min(number, kept + 1)
    return kept + 1


def self_certainty_of(logps):
    return -math.log(len(logps)) - _mean(logps)


def expected_distinct(step, draws, kept):
    """Over the ``kept`` most likely candidates; and with the rest bounded by draws x its mass."""
    values, bounds = [], []
    for logps in _tokens(step, "logps"):
        p = sorted((math.exp(x) for x in logps), reverse=True)
        values.append(sum(1 - (1 - x) ** draws for x in p[:kept]))
        bounds.append(values[-1] + draws * sum(p[kept:]))
    return _mean(values), _mean(bounds)


def token_grad_norm(step, low, high, with_norm):
    """|alpha| ||(e_y - p) h^T||, by building e_y - p."""
    norms = []
    for r in step:
        for y, logps, a, x, old, h in zip(r["ids"], r["logps"], r["A"], r["logp"], r["old"], r["norm"]):
            ratio = math.exp(x - old)
            is_clipped = (a > 0 and ratio > 1 + high) or (a < 0 and ratio < 1 - low)
            rest = math.sqrt(sum(((v == y) - math.exp(lp)) ** 2 for v, lp in enumerate(logps)))
            norms.append(0.0 if is_clipped else abs(ratio * a) * rest * (h if with_norm else 1.0))
    return _mean(norms)


def entropy_by_position(step, sign=0, bins=20):
    """Bin -> (tokens, sum of entropies)."""
    found = {}
    for r in step:
        n = len(r["entropy"])
        for t, (h, a) in enumerate(zip(r["entropy"], r["A"])):
            if sign == 0 or (a > 0 if sign > 0 else a < 0):
                count, total = found.get(bins * t // n, (0, 0.0))
                found[bins * t // n] = (count + 1, total + h)
    return found


def quantile(values, share):
    """The lowest value that at least ``share`` of them are at or below."""
    ordered = sorted(values)
    return next(v for n, v in enumerate(ordered, start=1) if n >= share * len(ordered) - 1e-9)


def mean_of_top(values, share):
    ordered = sorted(values, reverse=True)
    return _mean(ordered[: max(1, round(share * len(ordered)))])


def mass_of_top(values, share):
    ordered = sorted(values, reverse=True)
    return sum(ordered[: max(1, round(share * len(ordered)))]) / sum(ordered)


def unique_completions(step):
    return _mean(len({r["completion"] for r in group}) / len(group) for group in _groups(step))


def z_bound(step):
    bounds = []
    for group in _groups(step):
        prob = [(math.exp(_mean(r["logp"])), r["reward"] >= 1) for r in group]
        right, wrong = [p for p, ok in prob if ok], [p for p, ok in prob if not ok]
        if right and wrong:
            share = len(right) / len(prob)
            sigma = math.sqrt(share * (1 - share))
            bounds.append(1 + share * (1 - share) / sigma * (_mean(right) - _mean(wrong)))
    return _mean(bounds) if bounds else None


def maj_at_k(step, k):
    """Blocks of k responses in their order; of the answers given most often, the share of responses that is right."""
    values = []
    for group in _groups(step):
        blocks = [group[i : i + k] for i in range(0, len(group) - k + 1, k)]
        if blocks:
            values.append(_mean(_majority(block) for block in blocks))
    return _mean(values) if values else None


def _majority(block):
    votes = {}
    for number, r in enumerate(block):
        answer = ("none", number) if r["answer"] is None else r["answer"]
        votes.setdefault(answer, []).append(r["answer"] is not None and r["reward"] >= 1)
    most = max(len(v) for v in votes.values())
    return _mean(float(ok) for v in votes.values() if len(v) == most for ok in v)
