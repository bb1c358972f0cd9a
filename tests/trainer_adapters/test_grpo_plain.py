"""The one-file GRPO, and the snippets of docs/trainers/plain.md: run as they are printed."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from support.spool import spooled, values_of

from entrostat.trainer_adapters.controller import Intent
from entrostat.trainer_adapters.session import Session
from entrostat.wire.messages import ActiveIntervention, DesiredState

ROOT = Path(__file__).parents[2]
UPDATES = 16


@pytest.fixture
def example(tmp_path, monkeypatch):
    monkeypatch.setenv("ENTROSTAT_DIR", str(tmp_path))
    monkeypatch.setenv("ENTROSTAT_URL", "http://127.0.0.1:9")
    spec = importlib.util.spec_from_file_location("grpo_plain", ROOT / "examples" / "grpo_plain.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_with_nothing_switched_on_the_probes_loss_is_the_files_own_to_the_bit(example, tmp_path):
    own, ours = example.main(UPDATES), example.main(UPDATES, ours=True)

    assert own == ours
    assert len(set(own)) == UPDATES  # or nothing was trained
    tables, openings = spooled(tmp_path)
    assert len(openings) == 2
    first, last = values_of(tables["step_metric"], 1), values_of(tables["step_metric"], UPDATES)
    assert first["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert last["approx_kl"] > 1e-5  # the fourth update on its rollout
    assert last["num_responses"] == 32
    assert last["rollout_logp_gap"] < 1e-5  # the engine is the model itself
    assert {"reward_mean", "pass_at_8", "entropy_mean", "rank_logp_2", "format_violation_rate"} <= set(last)


def test_what_is_switched_on_acts_with_the_probes_loss(example, monkeypatch):
    wanted = [ActiveIntervention(name="entropy_bonus", params={"c": 0.5}, because="a test", by="person:anna")]
    state = DesiredState(version=1, interventions=wanted)
    monkeypatch.setattr(Session, "intent", lambda self, waited_s=0.0: Intent(state, waited_s=waited_s))

    own, acted = example.main(4), example.main(4, ours=True, act=True)

    assert acted[0] == pytest.approx(own[0] - 0.5 * 3.3, abs=0.1)  # ln 27 = 3.30 nats at first
    assert example.main(4, ours=True) == own  # not allowed: nothing acts


# The snippets -------------------------------------------------------------------------------------------------------


def snippet(name):
    page = (ROOT / "docs" / "trainers" / "plain.md").read_text()
    return re.search(rf"```python {name}\n(.*?)```", page, re.DOTALL).group(1)


def forward(model, ids):
    out = model(ids, output_hidden_states=True)
    logps = out.logits[:, :-1].log_softmax(-1)
    return out.hidden_states[-1][:, :-1], logps.gather(2, ids[:, 1:, None]).squeeze(2)


def rollouts(example, model, num):
    """Sampled once, with advantages by the prompt's group."""
    torch.manual_seed(1)
    made = []
    for number in range(num):
        groups = torch.tensor([2 * number, 2 * number + 1]).repeat_interleave(example.GROUP)
        ids, mask, logp = example.sample(model, groups)
        rewards = (torch.arange(len(groups)) % 3 == 0).float()
        made.append({"ids": ids, "mask": mask, "advantages": rewards - rewards.mean(), "old": logp, "groups": groups,
                     "rewards": rewards})  # fmt: skip
    return made


def test_the_accelerate_loop_of_the_page_runs_and_is_recorded(example, tmp_path):
    model = example.policy(0)
    before = [p.detach().clone() for p in model.parameters()]
    names = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3), "CPU": True, "RUN": "mine",
             "GROUP": example.GROUP, "forward": forward, "rollouts": rollouts(example, model, 4)}  # fmt: skip
    exec(compile(snippet("accelerate"), "plain.md", "exec"), names)

    tables, openings = spooled(tmp_path)
    metrics = tables["step_metric"]
    assert openings[0]["run_id"] == "mine"
    assert sorted(set(metrics.step)) == [1, 2]
    assert [values_of(metrics, s)["num_responses"] for s in (1, 2)] == [2 * 2 * example.GROUP] * 2
    assert values_of(metrics, 1)["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert values_of(metrics, 2)["approx_kl"] > 1e-6
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_lightning_module_of_the_page_runs_and_is_recorded(example, tmp_path):
    lightning = pytest.importorskip("lightning")
    model = example.policy(0)
    names = {"RUN": "mine", "GROUP": example.GROUP, "LEARNING_RATE": 1e-3, "forward": forward}
    exec(compile(snippet("lightning"), "plain.md", "exec"), names)
    trainer = lightning.Trainer(
        accelerator="cpu", accumulate_grad_batches=2, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path / "lightning",
    )  # fmt: skip
    batches = torch.utils.data.DataLoader(rollouts(example, model, 4), batch_size=None)
    trainer.fit(names["Grpo"](model), batches)

    metrics = spooled(tmp_path)[0]["step_metric"]
    assert sorted(set(metrics.step)) == [1, 2]
    assert [values_of(metrics, s)["num_responses"] for s in (1, 2)] == [2 * 2 * example.GROUP] * 2
    assert values_of(metrics, 2)["approx_kl"] > 1e-6
