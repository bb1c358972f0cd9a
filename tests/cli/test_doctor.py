"""``entrostat doctor --trainer``, as people type it, over packages that are as known, moved or absent."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest


def doctor(*arguments, path=None):
    search = {} if path is None else {"PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, "-P", "-m", "entrostat.cli.main", "doctor", *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200", **search},
    )  # fmt: skip


@pytest.fixture
def site(tmp_path):
    """A verl, as far as its metadata and one file of it go."""
    (tmp_path / "verl-0.9.1.dist-info").mkdir()
    (tmp_path / "verl-0.9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.9.1\n")
    core = tmp_path / "verl" / "trainer" / "ppo" / "core_algos.py"
    core.parent.mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").write_text("raise RuntimeError('verl was imported')\n")
    core.write_text("def agg_loss(loss_mat, mask, loss_agg_mode): ...\n")
    return tmp_path


def test_the_trainers_of_this_environment_are_as_known():
    done = doctor("--trainer", "trl")

    assert done.returncode == 0, done.stdout
    assert f"ok  trainers  TRL {version('trl')}: among those known" in done.stdout
    for use in ("attach", "DlcSampling", "reward functions", "attach(SFTTrainer)", "rollout_logprobs"):
        assert f"{use}, " in done.stdout or f"{use} (" in done.stdout
    assert 'attach(head="entrostat")' in done.stdout
    assert "server" not in done.stdout


def test_what_has_moved_is_named_and_the_exit_status_says_so(site):
    done = doctor("--trainer", "verl", path=site)

    assert done.returncode == 1
    assert done.stderr == ""
    place = "verl.trainer.ppo.core_algos:agg_loss"
    assert (
        f"FIX  trainers  verl: no interventions: {place} expected (loss_mat, loss_mask, loss_agg_mode), "
        "found (loss_mat, mask, loss_agg_mode)\n"
    ) in done.stdout
    assert "there is no module verl.workers.utils.losses that can be read" in done.stdout


def test_a_trainer_that_is_not_installed_is_no_fault(tmp_path):
    done = doctor("--trainer", "vllm")

    if "not installed" not in done.stdout:
        pytest.skip("vLLM is installed here")
    assert done.returncode == 0
    assert done.stdout == "   -  trainers  vLLM: not installed; known are 0.31 to 0.32\n"


def test_all_names_each_trainer_and_nothing_else():
    lines = doctor("--trainer", "all").stdout.splitlines()

    for title in ("TRL", "transformers", "verl", "vLLM"):
        assert any(line[16:].startswith(title) for line in lines)
    assert all(line[6:14] == "trainers" for line in lines)
