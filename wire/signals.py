"""The vocabulary: every signal declared once (``wire/declared/``).

Storage views, docs, chart titles, tooltips and Prometheus names are made from it. A signal whose inputs are absent in a
run is absent from its rows, never 0; the reason is an event of the run.
"""

from entrostat.wire.declared import (
    candidates,
    collapse,
    cost,
    covariance,
    entropy,
    groups,
    length,
    mismatch,
    perplexity,
    policy,
    rollout,
    text,
)
from entrostat.wire.declared.candidates import RANKS as RANKS
from entrostat.wire.declared.covariance import COVARIANCE_TOPS as COVARIANCE_TOPS
from entrostat.wire.declared.groups import PASS_AT as PASS_AT
from entrostat.wire.declared.signal import Direction as Direction
from entrostat.wire.declared.signal import Merge as Merge
from entrostat.wire.declared.signal import Need as Need
from entrostat.wire.declared.signal import Signal as Signal

FAMILIES: dict[str, tuple[Signal, ...]] = {
    "entropy": entropy.SIGNALS,
    "positions": entropy.PROFILES,
    "candidates": candidates.SIGNALS,
    "covariance": covariance.SIGNALS,
    "collapse": collapse.SIGNALS,
    "perplexity": perplexity.SIGNALS,
    "groups": groups.SIGNALS,
    "policy": policy.SIGNALS,
    "mismatch": mismatch.SIGNALS,
    "rollout": rollout.SIGNALS,
    "length": length.SIGNALS,
    "text": text.SIGNALS,
    "cost": cost.SIGNALS,
}
"""Family -> its signals. A family can be switched off (``attach(without=[...])``)."""


def _unique(*signals: Signal) -> tuple[Signal, ...]:
    names = [s.name for s in signals]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ValueError(f"declared twice: {sorted(twice)}")
    return signals


_ALL = _unique(*(s for family in FAMILIES.values() for s in family))
SIGNALS: tuple[Signal, ...] = tuple(s for s in _ALL if s.shape == "number")
"""A number a step each: the columns of the view ``step``."""
PROFILES: tuple[Signal, ...] = tuple(s for s in _ALL if s.shape == "positions")
"""A curve over relative positions a step each: the view ``profile``."""
BY_NAME = {s.name: s for s in SIGNALS}
FAMILY_OF = {s.name: family for family, signals in FAMILIES.items() for s in signals}

HISTOGRAMS: dict[str, Signal] = {
    s.name: s
    for s in (
        Signal("entropy", "nats", "Entropy of each response token.", "sum", "Exchange Eq. 3", shape="histogram"),
        Signal(
            "cov_token",
            "nats",
            "Covariance share of each token, (logp - mean)(A - mean), centred over the rank's tokens.",
            "sum",
            "Entropy Mechanism Eq. 8",
            ("advantages",),
            shape="histogram",
        ),
        Signal(
            "scope_score",
            "1",
            "p(1-p)max(A,0) of each token.",
            "sum",
            "SCOPE Eq. 11",
            ("advantages",),
            shape="histogram",
        ),
    )
}
"""The histograms of token values, binned as ``wire/bins.py`` says."""

FINDINGS: tuple[Signal, ...] = (
    Signal(
        "stage",
        "1",
        "rising or plateau: a plateau when over each window of 20 steps up to now the entropy changes by at most 2 % "
        "of its range since the baseline, or by no more than its noise explains. The papers draw the line by eye.",
        "derived",
        "Exchange Fig. 1",
        shape="run",
    ),
    Signal(
        "entropy_law",
        "1",
        "Least squares of R = -a exp(H) + b over the run's (entropy, reward) points: a, b, RMSE and the ceiling "
        "R(H=0) = b - a with a 95 % interval; refused, with the reason, under 8 points or without spread in H.",
        "derived",
        "Entropy Mechanism Eq. 6",
        ("rewards",),
        shape="run",
    ),
    Signal(
        "entropy_floor_forecast",
        "1",
        "The step at which the entropy reaches a floor if it goes on as lately; refused, with the reason, where it "
        "does not fall.",
        "derived",
        "ours",
        shape="run",
    ),
)
"""Statements about a whole run: ``GET /v1/runs/{run}/analysis``."""

USER_PREFIX = "trainer/"
"""What the trainer logs itself arrives under this prefix: ``trainer/loss``, ``trainer/learning_rate``."""

INTERVENTION_PREFIX = "intervention/"
"""What interventions tell of themselves: ``intervention/kl_cov_tokens``, the tokens held in a step. Sums."""
