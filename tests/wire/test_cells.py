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


def test_the_cells_of_a_part_are_the_cells_of_the_whole():
    """Fixed edges: the same token falls into the same cell on every rank."""
    logp, advantage = tokens(0, 300)
    whole = {
        (a, b): n for a, b, n in zip(*(cells_of(logp, advantage)[k] for k in ("logp_bin", "advantage_bin", "count")))
    }
    added = {}
    for s in (slice(0, 100), slice(100, None)):
        cells = cells_of(logp[s], advantage[s])
        for a, b, n in zip(cells["logp_bin"], cells["advantage_bin"], cells["count"]):
            added[a, b] = added.get((a, b), 0) + n

    assert added == whole


def test_signs_are_kept_apart():
    cells = cells_of(np.array([-1.0, -1.0]), np.array([0.5, -0.5]))

    assert sorted(cells["advantage_bin"].tolist()) == [-cells["advantage_bin"].max(), cells["advantage_bin"].max()]
