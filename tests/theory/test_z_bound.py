"""The signal ``z_bound``, from a loop to the view ``step``, against Over-sharpening Thm 2.3.

Responses of one token: there the length-normalised probability is the response's own, and the indicator is the bound.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.padded import NO_SERVER
from support.stored import stored

import entrostat
from entrostat.lab.theory import partition
from entrostat.lab.theory.partition import Batch
from entrostat.storage.store import Store

MODES, GROUP = 8, 16
STORAGE = Path(__file__).parents[2] / "storage"

pytestmark = pytest.mark.skipif(
    not any("z_bound" in path.read_text() for path in STORAGE.rglob("*.py")),
    reason="storage/ makes no z_bound yet: these tests hold it from the day it does",
)


def batches(seed, count):
    """Groups of ``GROUP`` responses at beta = 1, each with right and wrong ones."""
    draw, found = np.random.default_rng(seed), []
    while len(found) < count:
        ref = draw.dirichlet(np.full(MODES, 0.5))
        batch = Batch(ref, draw.random(MODES) < 0.5, draw.multinomial(GROUP, ref), beta=1.0)
        if 0 < batch.accuracy < 1:
            found.append(batch)
    return found


def z_bound(folder, groups):
    """The view's value for one step of these groups."""
    modes = np.concatenate([np.repeat(np.arange(MODES), b.counts) for b in groups])
    ref = np.repeat(np.stack([b.ref for b in groups]), GROUP, axis=0)
    is_right = np.concatenate([np.repeat(b.is_right, b.counts) for b in groups])
    order = np.random.default_rng(1).permutation(modes.size)  # a prompt's responses need not stand together
    with entrostat.Probe("z", url=NO_SERVER, directory=folder / "spool", group_size=GROUP) as probe:
        probe.observe(
            logits=torch.from_numpy(np.log(ref[order])).unsqueeze(1),
            labels=torch.from_numpy(modes[order]).unsqueeze(1),
            mask=torch.ones(modes.size, 1),
            advantages=torch.zeros(modes.size),
            groups=torch.from_numpy(np.repeat(np.arange(len(groups)), GROUP)[order]),
            rewards=torch.from_numpy(is_right[order].astype(np.float64)),
        )
        probe.end_step(1)
    with Store(f"duckdb://{folder / 'z.duckdb'}", linger_s=0.0) as store:
        stored(folder / "spool", store)
        return store.query("select z_bound from step where run = 'z'", 10).table.to_pylist()[0]["z_bound"]


@pytest.mark.parametrize("seed", range(3))
def test_the_signal_is_the_theorems_bound_by_means_and_below_z(tmp_path, seed):
    for place, batch in enumerate(batches(seed, 3)):
        (tmp_path / str(place)).mkdir()
        found = z_bound(tmp_path / str(place), [batch])

        assert found == pytest.approx(partition.bound_by_means(batch), rel=1e-4)
        assert found <= partition.partition(batch) + 1e-4
        assert found >= partition.bound_by_extremes(batch) - 1e-4


def test_several_prompts_give_their_mean_and_prompts_all_right_or_all_wrong_are_left_out(tmp_path):
    groups = batches(9, 5)
    sure = [Batch(b.ref, np.full(MODES, right), b.counts, 1.0) for b, right in zip(groups[3:], (True, False))]

    found = z_bound(tmp_path, [*groups[:3], *sure])

    assert found == pytest.approx(np.mean([partition.bound_by_means(b) for b in groups[:3]]), rel=1e-4)


def test_a_bound_of_the_wrong_sign_or_scale_would_be_told_apart(tmp_path):
    batch = max(batches(0, 20), key=lambda b: abs(partition.bound_by_means(b) - 1))
    found = z_bound(tmp_path, [batch])

    for factor in (-1.0, batch.sigma, GROUP / (GROUP - 1)):
        assert found != pytest.approx(1 + factor * (partition.bound_by_means(batch) - 1), rel=1e-3)
