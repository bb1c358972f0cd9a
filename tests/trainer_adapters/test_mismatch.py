"""The rollout engine's log-probs against the trainer's: as a loop gives them, and as TRL has them of vLLM."""

import random

import numpy as np
import pytest
import torch
from support import tiny_trl
from support.spool import spooled, values_of

import entrostat

NO_SERVER = "http://127.0.0.1:9"
TEMPERATURE = 0.9
NAMES = {
    "rollout_kl", "rollout_kl_k3", "rollout_ratio_mean", "rollout_ratio_max", "rollout_ratio_out_share",
    "rollout_logp_gap", "rollout_prob_gap_max",
}  # fmt: skip


def expected(trainer, rollout):
    """The signals of two lists of log-probs, the second with None where unknown."""
    pairs = [(a, b) for a, b in zip(trainer, rollout, strict=True) if b is not None]
    a, b = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    ratio = np.exp(a - b)
    return {
        "rollout_kl": np.mean(b - a), "rollout_kl_k3": np.mean(ratio - 1 - np.log(ratio)),
        "rollout_ratio_mean": ratio.mean(), "rollout_ratio_max": ratio.max(),
        "rollout_ratio_out_share": np.mean((ratio < 0.5) | (ratio > 2)), "rollout_logp_gap": np.abs(a - b).mean(),
        "rollout_prob_gap_max": np.abs(np.exp(a) - np.exp(b)).max(),
    }  # fmt: skip


# A loop of one's own ------------------------------------------------------------------------------------------------


def loop(folder, **given):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 7, (3, 4), generator=generator)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
    with entrostat.Probe("mine", url=NO_SERVER, directory=folder, tokens=0) as probe:
        seen = probe.observe(logits=logits, labels=labels, mask=mask, **given)
        probe.end_step(1)
    return values_of(spooled(folder)[0]["step_metric"], 1), seen.logp, mask.bool()


@pytest.mark.parametrize("has_old", [False, True])
def test_a_loop_gives_its_engines_log_probs_and_they_are_held_against_the_policy_that_sampled(tmp_path, has_old):
    generator = torch.Generator().manual_seed(1)
    rollout = -torch.rand(3, 4, generator=generator, dtype=torch.float64) * 4
    rollout[0, 1], rollout[2, 0] = torch.nan, -torch.inf
    old = -torch.rand(3, 4, generator=generator, dtype=torch.float64) * 4 if has_old else None

    values, logp, mask = loop(tmp_path, rollout_logps=rollout, **({"old_logps": old} if has_old else {}))

    known = [x if np.isfinite(x) else None for x in rollout[mask].tolist()]
    wanted = expected((old if has_old else logp)[mask].tolist(), known)
    assert {name: values[name] for name in NAMES} == pytest.approx(wanted, rel=1e-12)


def test_an_engine_that_reported_nothing_leaves_no_values(tmp_path):
    values, _, _ = loop(tmp_path, rollout_logps=torch.full((3, 4), torch.nan))

    assert not {name for name in NAMES if values.get(name) is not None}


def test_a_loop_without_them_says_why_they_are_absent(tmp_path):
    values, _, _ = loop(tmp_path)

    events = spooled(tmp_path)[0]["event"]
    assert not NAMES & set(values)
    said = " ".join(events[events.kind == "absent"].detail)
    assert "rollout_kl_k3" in said
    assert "the engine that sampled reported no log-probs" in said


def test_rollout_log_probs_of_another_shape_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"rollout_logps \(3, 3\)"):
        loop(tmp_path, rollout_logps=torch.zeros(3, 3))


# TRL ----------------------------------------------------------------------------------------------------------------


class Engine:
    """A ``rollout_func`` in the place of vLLM: log-probs near the trainer's own, some of them None."""

    def __init__(self):
        self.pairs = []

    def __call__(self, prompts, trainer):
        draw, tokenizer = random.Random(len(self.pairs)), trainer.processing_class
        prompt_ids = [tokenizer.encode(p) for p in prompts]
        found = {"prompt_ids": prompt_ids, "completion_ids": [], "logprobs": []}
        for prompt in prompt_ids:
            ids = [draw.choice([2, 3]), *(draw.randrange(2, 22) for _ in range(draw.randint(0, 7)))]  # 2 is right
            with torch.no_grad():
                logits = trainer.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].double()
            own = (logits / TEMPERATURE).log_softmax(-1)[range(len(ids)), ids].tolist()
            said = [None if draw.random() < 0.2 else x + draw.gauss(0, 0.5) for x in own]
            self.pairs += zip(own, said, strict=True)
            found["completion_ids"].append(ids)
            found["logprobs"].append(said)
        return found


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_trls_sampling_log_probs_are_held_against_the_trainers_at_the_rollout(tmp_path, level):
    engine = Engine()
    trainer = tiny_trl.trainer(
        tmp_path / "out", rollout_func=engine, num_iterations=2, max_steps=2, learning_rate=0.05,
        importance_sampling_level=level,
    )  # fmt: skip
    entrostat.attach(trainer, url=NO_SERVER, directory=tmp_path / "spool")
    trainer.train()

    metrics = spooled(tmp_path / "spool")[0]["step_metric"]
    wanted = expected(*zip(*engine.pairs, strict=True))
    for step in (1, 2):  # the update between the two moves the policy, and is not the engine's doing
        values = values_of(metrics, step)
        assert {name: values[name] for name in NAMES} == pytest.approx(wanted, rel=1e-4), step
    assert values["approx_kl"] > 1e-4
    assert 0 < wanted["rollout_ratio_out_share"] < 1


def test_in_trl_each_kept_token_has_what_its_engine_said(tmp_path):
    engine = Engine()
    trainer = tiny_trl.trainer(tmp_path / "out", rollout_func=engine, max_steps=1)
    entrostat.attach(trainer, url=NO_SERVER, directory=tmp_path / "spool", tokens="all")
    trainer.train()

    rows = spooled(tmp_path / "spool")[0]["token"]
    said = {np.float32(value): own for own, value in engine.pairs if value is not None}
    known = rows.dropna(subset="rollout_logp")
    assert sorted(known.rollout_logp) == sorted(said)
    assert known.logp.tolist() == pytest.approx([said[np.float32(x)] for x in known.rollout_logp], abs=1e-5)
    assert len(rows) - len(known) == sum(value is None for _, value in engine.pairs) > 0


def test_in_trl_without_an_engine_they_are_absent(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", max_steps=1)
    entrostat.attach(trainer, url=NO_SERVER, directory=tmp_path / "spool")
    trainer.train()

    tables = spooled(tmp_path / "spool")[0]
    assert not NAMES & set(values_of(tables["step_metric"], 1))
    assert len(tables["token"])
    assert tables["token"].rollout_logp.isna().all()


def test_the_family_can_be_switched_off(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", rollout_func=Engine(), max_steps=1)
    entrostat.attach(trainer, url=NO_SERVER, directory=tmp_path / "spool", without=["mismatch"])
    trainer.train()

    values = values_of(spooled(tmp_path / "spool")[0]["step_metric"], 1)
    assert not NAMES & set(values)
    assert "entropy_mean" in values
