"""As verl is started: processes of their own, the plugin loaded by its entry point, or not."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import verl
from hydra import compose, initialize_config_dir
from peers.verl import engine as tiny
from support.spool import spooled, values_of

TESTS = Path(__file__).parents[2]
MOVED = """
import dataclasses
import verl
from entrostat.trainer_adapters import hooks
moved = [dataclasses.replace(h, arguments=("something", "else")) if h.name == "forward_step" else h
         for h in hooks.VERL.hooks]
import entrostat.trainer_adapters.verl.taps as taps
taps.VERL = dataclasses.replace(hooks.VERL, hooks=tuple(moved))
import verl.workers.engine
"""
ABSENT = """
import sys
sys.path.insert(0, sys.argv[1])  # a package of this name without an engine
import entrostat.trainer_adapters.verl.plugin
"""

BY_RAY = """
import sys
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False,
         runtime_env={"env_vars": {"ENTROSTAT_VERL": "1", "RANK": "0", "WORLD_SIZE": "1"}})
@ray.remote
def work(policy, out):
    from peers.verl import train_worker
    train_worker.main(policy, out)
    return "entrostat.trainer_adapters.verl.taps" in sys.modules
print("in a worker of Ray's:", ray.get(work.remote(*sys.argv[1:])))
ray.shutdown()
"""


def run(arguments, folder, **variables):
    environment = os.environ | {
        "PYTHONPATH": str(TESTS), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "ENTROSTAT_RUN": "mine",
        "ENTROSTAT_URL": "http://127.0.0.1:9", "ENTROSTAT_DIR": str(folder / "spool"), **variables,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=280
    )


def two_processes(policy, out, folder, **variables):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*launcher, "-m", "peers.verl.train_worker", policy, out], folder, **variables)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, torch.load(out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two updates of one rollout by verl's own worker in two processes, without us and with us."""
    folder = tmp_path_factory.mktemp("two")
    policy = tiny.save_policy(folder / "policy")
    unseen = two_processes(policy, folder / "unseen.pt", folder)
    seen = two_processes(policy, folder / "seen.pt", folder, ENTROSTAT_VERL="1", ENTROSTAT_MODE="act")
    return folder, unseen, seen


def test_installed_and_not_switched_on_nothing_is_touched(trained):
    said = trained[1][0]

    assert said.count("not watched False") == 2


def test_two_processes_by_the_entry_point_train_the_same_to_the_bit(trained):
    _, (_, alone), (said, watched) = trained

    assert said.count("watched True") == 2
    assert watched["metrics"] == alone["metrics"]
    assert all(torch.equal(watched["weights"][n], alone["weights"][n]) for n in alone["weights"])


def test_two_processes_are_one_run_of_two_ranks_and_their_groups_are_whole(trained):
    tables, openings = spooled(trained[0] / "spool")
    seqs = tiny.sequences(0, 2 * tiny.NUM_RESPONSES)

    assert [(o["run_id"], o["world_size"]) for o in openings] == [("mine", 2)] * 2
    assert len({o["session_id"] for o in openings}) == 1
    assert {o["rank"] for o in openings} == {0, 1}
    counted = (
        tables["step_metric"].query("name == 'num_tokens'").groupby("step").state.apply(lambda s: sum(x[0] for x in s))
    )
    assert counted.to_dict() == {
        step: sum(int(m.sum()) for r in (0, 1) for m in masks_of(seqs, r, step)) for step in (1, 2)
    }
    # Each group lies on both ranks and in one of the two mini-batches; it is told whole, at the rollout's first step.
    right = [float(s.sum()) for s in seqs.scores]
    groups = [right[i : i + tiny.GROUP] for i in range(0, len(right), tiny.GROUP)]
    found = values_of(tables["step_metric"].query("name == 'pass_at_1' or name == 'zero_variance_groups'"), 1)
    assert found["pass_at_1"] == pytest.approx(sum(right) / len(right))
    assert found["zero_variance_groups"] == pytest.approx(sum(len(set(g)) == 1 for g in groups) / len(groups))


def masks_of(seqs, rank, step):
    """A rank's masks of a mini-batch, as verl's worker cuts them."""
    mine = seqs.masks[rank::2]
    return mine[(step - 1) * len(mine) // 2 : step * len(mine) // 2]


@pytest.mark.slow
def test_a_worker_that_ray_started_loads_the_plugin_by_ray_s_environment(tmp_path):
    policy = tiny.save_policy(tmp_path / "policy")

    done = run(["-c", BY_RAY, policy, tmp_path / "out.pt"], tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())

    assert "in a worker of Ray's: True" in done.stdout, done.stderr[-4000:]
    tables, openings = spooled(tmp_path / "spool")
    assert [o["run_id"] for o in openings] == ["mine"]
    assert sorted(tables["step_metric"].query("name == 'entropy_mean'").step) == [1, 2]
    # Ray ends its workers without asking them.
    assert not tables["event"].kind.eq("run_ended").any()


def test_the_lines_for_hydra_reach_ray_as_texts():
    page = (TESTS.parent / "docs" / "trainers" / "verl.md").read_text()
    lines = re.search(r"```hydra\n(.*?)```", page, re.DOTALL)[1].splitlines()

    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", lines)

    found = config.ray_kwargs.ray_init.runtime_env.env_vars
    assert found == {"ENTROSTAT_VERL": "1", "ENTROSTAT_RUN": "mine", "ENTROSTAT_URL": "http://trainserver:8321"}


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def test_a_hook_that_has_moved_stops_the_import_of_the_engine_and_is_on_stderr(tmp_path):
    done = run(["-c", MOVED], tmp_path, ENTROSTAT_VERL="1")

    assert done.returncode != 0
    assert "entrostat: verl 0.9.1: FSDPEngineWithLMHead.forward_step takes" in done.stderr
    assert "AttachError" in done.stderr
    assert "unset ENTROSTAT_VERL" in done.stderr


def test_an_engine_that_is_gone_is_on_stderr(tmp_path):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()

    done = run(["-c", ABSENT, tmp_path], tmp_path, ENTROSTAT_VERL="1")

    assert done.returncode == 0
    assert "this verl has no verl.workers.engine.fsdp.transformer_impl: nothing will be recorded" in done.stderr


@pytest.mark.parametrize(("value", "said"), [("maybe", "ENTROSTAT_VERL='maybe': set it to 1"), ("0", "")])
def test_a_switch_that_cannot_be_read_is_said_and_off_is_off(tmp_path, value, said):
    done = run(["-c", "import entrostat.trainer_adapters.verl.plugin"], tmp_path, ENTROSTAT_VERL=value)

    assert done.returncode == 0
    assert said in done.stderr if said else not done.stderr
