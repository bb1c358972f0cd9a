"""An engine's stream and the trainer's are one run in SQL, whoever comes first, and after an engine's restart."""

from types import SimpleNamespace

import pytest
import torch
from support.stored import stored

import entrostat
from entrostat.storage.store import Store
from entrostat.trainer_adapters.vllm.rollout_stream import RolloutStream

CONFIG = SimpleNamespace(model_config=None, parallel_config=None)


def rollout(folder, monkeypatch, num_tokens, seed=0):
    """An engine that samples so many tokens of step 1; returns their logits."""
    monkeypatch.setenv("ENTROSTAT_RUN", "mine")
    monkeypatch.setenv("ENTROSTAT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ENTROSTAT_DIR", str(folder))
    engine, ids = RolloutStream(CONFIG, torch.device("cpu"), False), []
    params = SimpleNamespace(temperature=1.0, extra_args={"entrostat_step": 1})
    engine.update_state(SimpleNamespace(removed=[], added=[(0, params, [1], ids)], moved=[]))
    logits = torch.randn(num_tokens, 7, generator=torch.Generator().manual_seed(seed)) * 2
    for row in logits:
        engine.apply(row.unsqueeze(0))
        ids.append(0)
    engine.send()
    engine._sender.close(0.1)
    return logits


def train(folder):
    with entrostat.Probe("mine", url="http://127.0.0.1:9", directory=folder, tokens=0) as probe:
        for step in (1, 2):
            labels = torch.tensor([[1, 2]])
            probe.observe(logits=torch.zeros(1, 2, 7), labels=labels, mask=torch.ones(1, 2))
            probe.end_step(step)


@pytest.mark.parametrize("order", [("trainer", "engine", "again"), ("engine", "trainer", "again")])
def test_both_are_one_run_and_an_engine_that_was_restarted_adds_up(tmp_path, monkeypatch, order):
    logits = [rollout(tmp_path / "engine", monkeypatch, 3), rollout(tmp_path / "again", monkeypatch, 5, seed=1)]
    train(tmp_path / "trainer")

    with Store(f"duckdb://{tmp_path / 'one.duckdb'}", linger_s=0.0) as store:
        for name in order:
            stored(tmp_path / name, store)
        rows = store.query("select * from step order by step", 10).table.to_pylist()
        runs = store.query("select run from run", 10).table.to_pylist()

    logp = torch.cat(logits).double().log_softmax(-1)
    assert runs == [{"run": "mine"}]
    assert [(r["step"], r["num_ranks"], r["is_complete"], r["rollout_tokens"]) for r in rows] == [
        (1, 1, True, 8), (2, 1, True, None),
    ]  # fmt: skip
    assert rows[0]["rollout_entropy_mean"] == pytest.approx(-(logp.exp() * logp).sum(-1).mean().item(), rel=1e-5)
    assert rows[0]["rollout_rank_logp_2"] == pytest.approx(logp.topk(2).values[:, 1].mean().item(), rel=1e-5)
    assert rows[0]["entropy_mean"] == pytest.approx(torch.tensor(7.0).log().item(), rel=1e-5)
