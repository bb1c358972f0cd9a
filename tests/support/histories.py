"""Made-up runs in the shape of the view ``step``: a list of rows, one a step."""

import numpy as np

from entrostat.server.rules.history import History, Row
from entrostat.server.rules.needs import needs_of
from entrostat.server.rules.replay import replayed

STEPS = 300


def noise(seed, size, scale):
    return np.random.default_rng(seed).normal(0, scale, size)


def healthy(seed=0, steps=STEPS, **changes):
    """A run that learns: entropy settles at two thirds, reward rises and flattens; every signal with its noise.

    Args:
        changes: signal -> its values in the place of the healthy ones; a function of t gets [steps].
    """
    t = np.arange(steps)
    curves = {
        "entropy_mean": 0.35 + 0.2 * np.exp(-t / 60) + noise(seed, steps, 0.02),
        "reward_mean": 0.3 + 0.4 * (1 - np.exp(-t / 100)) + noise(seed + 1, steps, 0.03),
        "pass_at_1": 0.3 + 0.4 * (1 - np.exp(-t / 100)) + noise(seed + 2, steps, 0.03),
        "cov_top_0_02pct": np.exp(0.5 + noise(seed + 3, steps, 0.5)),
        "zero_variance_groups": np.clip(0.35 + 0.1 * t / steps + noise(seed + 4, steps, 0.08), 0, 1),
        "all_right_groups": np.clip(0.1 + 0.3 * t / steps + noise(seed + 5, steps, 0.05), 0, 1),
        "truncated_rate": np.clip(0.05 + noise(seed + 6, steps, 0.02), 0, 1),
        "length_mean": 400 + 0.5 * t + noise(seed + 7, steps, 30),
        "approx_kl": np.abs(0.001 + noise(seed + 8, steps, 0.0005)),
        "d_collapse": 0.1 + noise(seed + 9, steps, 0.05),
    }
    curves |= {name: value(t) if callable(value) else value for name, value in changes.items()}
    return [
        Row(int(s), {name: float(v[s]) for name, v in curves.items() if np.isfinite(v[s])}) for s in t
    ]  # fmt: skip


def history(rows, rules, num_baseline=5):
    return History.of("r", rows, num_baseline, needs_of(rules))


def what(rows, rules, **more):
    """(rule, step, kind) of everything that ``rules`` would have done."""
    done = replayed(rules, history(rows, rules, **more), lambda statement, step: None)
    return [(one["rule"], one["step"], one["kind"]) for one in done]


def series(name, values, first=0):
    """Rows of one signal; None: not known at that step."""
    return [Row(first + i, {} if v is None else {name: float(v)}) for i, v in enumerate(values)]
