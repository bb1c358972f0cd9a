"""``entrostat.Probe`` in two processes, DDP and FSDP2 on CPU, against one; and a rank whose data stays behind."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import sharded_loop
from support.service import Process, free_port

from entrostat.wire.client import Client

SCRIPT = Path(sharded_loop.__file__)
COSTS = {"wall_time_s", "step_s", "probe_ms", "probe_share", "reduce_ms"}
HOWS = ("ddp", "fsdp", "fsdp_root")
METHODS = {
    "clip_higher": {"eps_high": 0.3}, "position_shaping": {}, "entropy_bonus": {"c": 0.1}, "iac": {},
    "ppl_shaping": {}, "entropy_advantage": {},
}  # fmt: skip
"""What looks at a token, or at the whole groups of a micro-batch."""
BY_MICRO_BATCH = {"kl_cov": {"k": 0.2}, "forking_tokens": {}}
"""What takes the top share of a micro-batch."""


def launch(url, folder, jobs):
    """Both ranks; returns what they said."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}",
         str(SCRIPT), str(folder), url, json.dumps(jobs)],
        capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def rows(url, statement):
    return Client(url).sql(statement)[0].to_pylist()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Process("entrostat.server", "--data", tmp_path_factory.mktemp("data")).start("/healthz")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def trained(server, tmp_path_factory):
    """Every run of two processes, in one launch, and those of one process beside them."""
    folder = tmp_path_factory.mktemp("out")
    jobs = [{"run": how, "how": how} for how in HOWS]
    jobs += [{"run": f"{how}-acted", "how": how, "methods": METHODS} for how in HOWS]
    jobs += [{"run": "fsdp-top", "how": "fsdp", "methods": BY_MICRO_BATCH}]
    jobs += [{"run": f"broken-{what}", "how": "fsdp", "broken": what} for what in ("url", "spool")]
    said = launch(server.url, folder, jobs)
    for run, methods in (("one", None), ("one-acted", METHODS), ("one-top", BY_MICRO_BATCH)):
        sharded_loop.train(folder, server.url, run, methods=methods)
    sharded_loop.train(folder, server.url, "one-whole", methods=METHODS, micro_batch=sharded_loop.RESPONSES)
    return folder, said


def trace(folder, run):
    return torch.load(folder / f"{run}.pt")


def largest_difference(a, b):
    """Of any gradient of any step, relative to the largest gradient."""
    pairs = [(x, y["gradients"][n]) for s, y in zip(a["trace"], b["trace"]) for n, x in s["gradients"].items()]
    return max(float((x - y).abs().max()) for x, y in pairs) / max(float(x.abs().max()) for x, _ in pairs)


@pytest.mark.parametrize("how", HOWS)
def test_the_merged_values_of_two_processes_are_those_of_one(server, trained, how):
    one, two = (
        rows(server.url, f"select * exclude (run) from step where run = '{r}' order by step") for r in ("one", how)
    )

    assert [row["step"] for row in two] == [1, 2, 3]
    assert all(row["is_complete"] and row["num_ranks"] == 2 for row in two)
    compared = set()
    for a, b in zip(one, two, strict=True):
        for name in a.keys() - COSTS - {"num_ranks", "world_size"}:
            if a[name] is None:
                assert b[name] is None, name
                continue
            assert b[name] == pytest.approx(a[name], rel=1e-4, abs=1e-6), (name, a["step"])
            compared.add(name)
    assert {"entropy_mean", "rank_logp_2", "cov_mean", "token_grad_norm", "pass_at_4", "approx_kl", "rollout_kl_k3",
            "rollout_ratio_max", "rollout_prob_gap_max", "unique_completions"} <= compared  # fmt: skip


def test_the_head_was_sharded_where_it_is_wrapped_on_its_own_and_whole_with_the_root(trained):
    folder, _ = trained

    assert [trace(folder, how)["was_sharded"] for how in HOWS] == [{False}, {True}, {False}]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("suffix", ["", "-acted"])
def test_two_processes_have_the_gradients_of_one(trained, how, suffix):
    folder, _ = trained
    one, two = trace(folder, f"one{suffix}"), trace(folder, f"{how}{suffix}")

    assert [s["loss"] for s in two["trace"]] == pytest.approx([s["loss"] for s in one["trace"]], rel=1e-5)
    assert largest_difference(one, two) < 1e-5
    assert largest_difference(trace(folder, "one"), trace(folder, "one-acted")) > 0.01  # the methods do something


def test_how_the_step_is_cut_into_micro_batches_does_not_matter_to_what_looks_at_tokens_and_groups(trained):
    folder, _ = trained

    assert largest_difference(trace(folder, "one-whole"), trace(folder, "one-acted")) < 1e-5


def test_top_shares_are_a_micro_batchs_and_the_same_wherever_it_is_trained(trained):
    folder, _ = trained

    assert largest_difference(trace(folder, "one-top"), trace(folder, "fsdp-top")) < 1e-5
    assert largest_difference(trace(folder, "one"), trace(folder, "one-top")) > 0.01


@pytest.mark.parametrize("what", ["url", "spool"])
def test_a_rank_whose_data_stays_behind_disturbs_nobody_and_completes_its_steps_when_pushed(server, trained, what):
    folder, said = trained
    run = f"broken-{what}"
    steps = f"select step, num_ranks, is_complete, num_tokens from step where run = '{run}' order by step"

    assert largest_difference(trace(folder, "fsdp"), trace(folder, run)) == 0
    whole = rows(server.url, "select num_tokens from step where run = 'fsdp' order by step")
    spool = folder / f"spool-{run}-1"
    if what == "spool":  # it reached the server from elsewhere, and said so
        moved = re.search(rf"rank 1 spools to (\S+) instead: .*{spool.name}", said)
        assert moved
        assert [r["is_complete"] for r in rows(server.url, steps)] == [True] * 3
        events = rows(server.url, f"select message from event where run = '{run}' and kind = 'warning'")
        assert any("rank 1 spools to" in row["message"] for row in events)
        return
    before = rows(server.url, steps)
    assert [(r["step"], r["num_ranks"], r["is_complete"]) for r in before] == [(s, 1, False) for s in (1, 2, 3)]
    assert all(a["num_tokens"] < b["num_tokens"] for a, b in zip(before, whole, strict=True))

    pushed = subprocess.run(
        [sys.executable, "-P", "-m", "entrostat.cli.main", "push", str(spool), "--url", server.url], check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert pushed.returncode == 0, pushed.stderr
    after = rows(server.url, steps)
    assert [(r["num_ranks"], r["is_complete"]) for r in after] == [(2, True)] * 3
    assert [r["num_tokens"] for r in after] == [r["num_tokens"] for r in whole]
