"""Covariances centred anew from cells: exact in every cell, and near in their order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrostat.wire.cells import cells_of


def tokens(seed, size):
    rng = np.random.default_rng(seed)
    return -rng.exponential(size=size), np.round(rng.normal(size=size), 1)


@given(seed=st.integers(0, 1000), size=st.integers(1, 400), cut=st.integers(0, 400))
def test_cells_of_the_parts_add_up_to_the_covariance_of_the_whole(seed, size, cut):
    logp, advantage = tokens(seed, size)
    parts = [cells_of(logp[s], advantage[s]) for s in (slice(0, cut), slice(cut, None)) if logp[s].size]
    total = {name: sum(p[name].sum() for p in parts) for name in ("count", "sum_logp", "sum_advantage", "sum_product")}

    n = total["count"]
    covariance = total["sum_product"] / n - total["sum_logp"] / n * total["sum_advantage"] / n

    assert n == size
    assert covariance == pytest.approx(np.cov(logp, advantage, bias=True)[0, 1], abs=1e-12)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize("seed", range(3))
def test_the_top_shares_of_two_parts_are_near_those_of_the_whole(seed, spread):
    """Also where all log-probs are nearly equal: what counts is the distance from the mean."""
    draw = np.random.default_rng(seed)
    logp, advantage = -3.0 + spread * draw.normal(size=8000), np.repeat(draw.normal(size=80), 100)
    parts = [cells_of(logp[s], advantage[s]) for s in (slice(0, 4000), slice(4000, None))]
    joined = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}

    n, mx, ma = joined["count"], logp.mean(), advantage.mean()
    cov = (joined["sum_product"] - ma * joined["sum_logp"] - mx * joined["sum_advantage"] + n * mx * ma) / n
    order = np.argsort(-cov)
    before = np.cumsum(n[order]) - n[order]
    true = np.sort((logp - mx) * (advantage - ma))[::-1]
    for share, error in ((0.0002, 0.0), (0.002, 0.01), (0.02, 0.03), (0.2, 0.01)):
        k = round(share * 8000)
        taken = np.clip(k - before, 0, n[order])
        assert (taken * cov[order]).sum() / k == pytest.approx(true[:k].mean(), rel=error + 1e-9), share
    assert sum(p["count"].size for p in parts) < 3000


def test_no_tokens_no_cells():
    assert cells_of(np.zeros(0), np.zeros(0))["count"].size == 0
