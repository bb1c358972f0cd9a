"""Two processes under torchrun, DDP on CPU, against one process on the same data; and ranks that stay away."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.service import Process, free_port

import entrostat
from entrostat.wire.client import Client

RUN = Path(__file__).parents[1] / "support" / "fixed_rollouts.py"
COSTS = {"wall_time_s", "step_s", "probe_ms", "probe_share", "reduce_ms"}
FROM_CELLS = {"cov_top_0_02pct", "cov_top_0_2pct", "cov_top_2pct", "cov_top_20pct"}
"""From two ranks these are read from cells; so few tokens are all cells of their own, and exact (wire/cells.py)."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Process("entrostat.server", "--data", tmp_path_factory.mktemp("data")).start("/healthz")
    yield made
    made.stop()


def train(server, folder, run, group, num_processes, interventions=None):
    launcher = [sys.executable, "-P"]
    if num_processes > 1:
        launcher = [sys.executable, "-P", "-m", "torch.distributed.run", f"--nproc_per_node={num_processes}",
                    f"--master_port={free_port()}"]  # fmt: skip
    done = subprocess.run(
        [*launcher, str(RUN), str(folder), server.url, run, str(group), "16", json.dumps(interventions or {})],
        capture_output=True, text=True, check=False, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def rows(server, statement):
    return Client(server.url).sql(statement)[0].to_pylist()


@pytest.mark.parametrize("group", [4, 16], ids=["whole groups on a rank", "a group over both ranks"])
def test_two_processes_give_the_values_of_one(server, tmp_path, group):
    values = {}
    for num_processes in (1, 2):
        run = f"{num_processes}-of-{group}"
        train(server, tmp_path, run, group, num_processes)
        values[num_processes] = rows(server, f"select * exclude (run) from step where run = '{run}' order by step")

    assert [row["step"] for row in values[2]] == [1, 2, 3, 4]
    assert all(row["is_complete"] for row in values[2])
    compared = set()
    for one, two in zip(values[1], values[2], strict=True):
        for name in one.keys() - COSTS - {"num_ranks", "world_size"}:
            if one[name] is None:
                assert two[name] is None, name
                continue
            assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), (name, one["step"])
            compared.add(name)
    assert {"entropy_mean", "cov_mean", "cov_group", "pass_at_4", "rank_logp_2", "ln_ppl_z_pos", "token_grad_norm",
            "entropy_p50", "scope_mass_top5", "unique_completions", *FROM_CELLS} <= compared  # fmt: skip


def test_interventions_train_two_processes_as_one(server, tmp_path):
    wanted = {"iac": {}, "position_shaping": {}, "clip_higher": {"eps_high": 0.4}, "entropy_bonus": {"c": 2.0},
              "learning_rate": {"factor": 3.0}}  # fmt: skip
    entropy = {}
    for name, num_processes, active in (("one", 1, wanted), ("two", 2, wanted), ("none", 1, None)):
        train(server, tmp_path, f"acted-{name}", 16, num_processes, active)
        found = rows(server, f"select entropy_mean from step where run = 'acted-{name}' order by step")
        entropy[name] = [row["entropy_mean"] for row in found]

    assert entropy["two"] == pytest.approx(entropy["one"], rel=2e-5)
    assert max(abs(a - b) for a, b in zip(entropy["one"], entropy["none"], strict=True)) > 1e-3
    switched = rows(server, "select step, message from event where run = 'acted-two' and kind = 'intervention_on'")
    assert [row["step"] for row in switched] == [2] * len(wanted)  # told once, by rank 0


def test_a_rank_that_stays_away_leaves_its_steps_incomplete_and_the_others_as_they_are(server, tmp_path):
    def rank(number):
        return entrostat.Probe(
            "half", url=server.url, directory=tmp_path, rank=number, world_size=2, session_id="0" * 31 + "1"
        )

    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = {"labels": torch.ones(2, 3, dtype=torch.int64), "mask": torch.ones(2, 3), "logits": logits}
    with rank(0) as first, rank(1) as second:
        for step in (1, 2, 3):
            first.observe(**seen)
            first.end_step(step)
            if step < 3:  # then this rank dies
                second.observe(**seen)
                second.end_step(step)

    found = rows(
        server, "select step, num_ranks, world_size, is_complete, num_tokens from step where run = 'half' order by 1"
    )
    assert [(r["num_ranks"], r["world_size"], r["is_complete"], r["num_tokens"]) for r in found] == [
        (2, 2, True, 12), (2, 2, True, 12), (1, 2, False, 6)
    ]  # fmt: skip
