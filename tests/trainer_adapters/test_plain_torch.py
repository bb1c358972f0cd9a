"""entrostat.Probe in a loop of one's own: from hidden states or logits, the numbers of the oracle."""

import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import signals_oracle as oracle
from support.spool import spooled, values_of
from support.steps import random_step

import entrostat
from entrostat.interventions.chain import chain
from entrostat.interventions.methods import METHODS
from entrostat.interventions.policy_loss import policy_loss
from entrostat.wire.errors import AttachError, SpoolError

NO_SERVER = "http://127.0.0.1:9"
ROOT = Path(__file__).parents[2]


def tensors(step):
    """The step's logits [B, T, V], and what else a loop has."""
    width = max(len(r["logp"]) for r in step)
    logits = torch.zeros(len(step), width, step[0]["logits"].shape[1], dtype=torch.float64)
    labels, mask = torch.zeros(len(step), width, dtype=torch.int64), torch.zeros(len(step), width)
    old = torch.zeros(len(step), width, dtype=torch.float64)
    for i, r in enumerate(step):
        n = len(r["logp"])
        logits[i, :n], labels[i, :n], mask[i, :n] = torch.tensor(r["logits"]), torch.tensor(r["ids"]), 1
        old[i, :n] = torch.tensor(r["old"], dtype=torch.float64)
    return {
        "logits": logits, "labels": labels, "mask": mask, "old_logps": old,
        "advantages": torch.tensor([r["A"][0] for r in step], dtype=torch.float64),
        "groups": torch.tensor([r["prompt"] for r in step]),
        "rewards": torch.tensor([r["reward"] for r in step], dtype=torch.float64),
        "truncated": torch.tensor([r["truncated"] for r in step]),
    }  # fmt: skip


def probe(folder, **options):
    return entrostat.Probe("mine", url=NO_SERVER, directory=folder, group_size=4, **options)


@pytest.fixture
def recorded(tmp_path):
    step = random_step(0)
    with probe(tmp_path) as made:
        given = tensors(step)
        for rows in (slice(0, 5), slice(5, None)):
            made.observe(**{name: value[rows] for name, value in given.items()}, micro_batches=2)
        made.end_step(3, metrics={"lr": 1e-5})
    return spooled(tmp_path)[0], step


def test_what_a_loop_observes_has_the_oracles_values(recorded):
    tables, step = recorded
    values = values_of(tables["step_metric"], 3)

    assert values["entropy_mean"] == pytest.approx(oracle.entropy_mean(step), rel=1e-9)
    assert values["rank_logp_3"] == pytest.approx(oracle.rank_logp(step, 3), rel=1e-9)
    assert values["cov_mean"] == pytest.approx(np.mean(oracle.cov_tokens(step)), rel=1e-8)
    assert values["pass_at_2"] == pytest.approx(oracle.pass_at_k(step, 2))
    assert values["top1_rate"] == pytest.approx(oracle.top1_rate(step))
    assert values["approx_kl"] == pytest.approx(oracle.approx_kl(step), rel=1e-8)
    assert values["trainer/lr"] == 1e-5


def test_hidden_states_and_the_head_give_what_their_logits_give(tmp_path):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    head = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    shared = {"labels": torch.tensor([[1, 2, 3], [4, 5, 6]]), "mask": torch.ones(2, 3), "temperature": 0.7}
    with probe(tmp_path) as made:
        a = made.observe(hidden=hidden, head=head, **shared)
        b = made.observe(logits=hidden @ head.T, **shared)

    assert torch.allclose(a.entropy, b.entropy, rtol=1e-12)
    assert torch.equal(a.stats.top_ids, b.stats.top_ids)


def test_policy_loss_is_ppos_with_what_is_switched_on(tmp_path):
    given = tensors(random_step(1))
    logp = given["logits"].log_softmax(-1).gather(-1, given["labels"].unsqueeze(-1)).squeeze(-1).requires_grad_()
    with probe(tmp_path, eps_high=0.2) as made:
        seen = made.observe(**given)
        usual = made.policy_loss(logp, seen, old_logps=given["old_logps"])
        wider = made.policy_loss(
            logp, seen, old_logps=given["old_logps"], transforms=chain({"clip_higher": {"eps_high": 5.0}})
        )

    assert wider < usual
    usual.backward()
    assert logp.grad.abs().sum() > 0


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_method_can_be_used_in_a_loop_and_gives_what_the_policy_loss_gives(tmp_path, method):
    given = tensors(random_step(1))
    logps = given["logits"].requires_grad_().log_softmax(-1)
    logp = logps.gather(-1, given["labels"].unsqueeze(-1)).squeeze(-1)
    entropy, top = -(logps.exp() * logps).sum(-1), logps.sort(-1, descending=True).values[..., :3]
    shared = {
        "entropy": entropy, "top_logps": top, "transforms": chain({method.name: {}}),
        "reference_kl": lambda rows: entropy.reshape(-1)[rows],
    }  # fmt: skip
    with probe(tmp_path, eps_high=0.28) as made:
        seen = made.observe(**given)
        losses = [made.policy_loss(logp, seen, old_logps=given["old_logps"], **shared) for _ in range(2)]

    states = {}
    for loss in losses:
        expected = policy_loss(
            logp, given["advantages"], given["mask"], old_logp=given["old_logps"], eps_low=0.2, eps_high=0.28,
            is_top1=seen.stats.is_top1.view(given["mask"].shape), groups=given["groups"], states=states, **shared,
        )  # fmt: skip
        states = expected.states
        assert torch.equal(loss, expected.loss)
        loss.backward(retain_graph=True)


def test_observing_leaves_gradients_and_random_numbers_alone(tmp_path):
    given = tensors(random_step(2))
    logits = given.pop("logits").requires_grad_()
    before = torch.random.get_rng_state()
    with probe(tmp_path, tokens=5) as made:
        made.observe(logits=logits, **given)

    assert torch.equal(before, torch.random.get_rng_state())
    assert logits.grad is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": None}, "either hidden"),
        ({"hidden": torch.zeros(12, 7, 4)}, "either hidden"),
        ({"mask": torch.ones(12, 9)}, "must agree"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, change, message):
    given = {**tensors(random_step(0)), **change}
    with probe(tmp_path) as made, pytest.raises(ValueError, match=message):
        made.observe(**given)


def test_several_ranks_must_name_their_run_together(tmp_path):
    with pytest.raises(ValueError, match="session_id"):
        entrostat.Probe(directory=tmp_path, url=NO_SERVER, world_size=2)


def test_a_directory_that_cannot_be_used_stops_one_process_at_its_start_and_moves_a_rank_of_several(
    tmp_path, monkeypatch, caplog
):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    with pytest.raises(SpoolError, match="taken"):
        entrostat.Probe("mine", directory=taken, url=NO_SERVER)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with entrostat.Probe(
        "mine", directory=taken, url=NO_SERVER, rank=1, world_size=2, session_id="0" * 32
    ) as made:  # fmt: skip
        made.observe(**tensors(random_step(0)))
        made.end_step(1)

    (elsewhere,) = tmp_path.glob("entrostat-spool-*")
    assert str(elsewhere) in caplog.text
    assert values_of(spooled(elsewhere)[0]["step_metric"], 1)["num_responses"] == 12


def test_the_example_loop_runs_and_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("ENTROSTAT_DIR", str(tmp_path))
    monkeypatch.setenv("ENTROSTAT_URL", NO_SERVER)
    spec = importlib.util.spec_from_file_location("plain_loop", ROOT / "examples" / "plain_loop.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    run = example.main(steps=30)

    tables, openings = spooled(tmp_path)
    metrics = tables["step_metric"]
    assert openings[0]["run_id"] == run
    assert values_of(metrics, 30)["reward_mean"] > values_of(metrics, 1)["reward_mean"]
    assert values_of(metrics, 30)["entropy_mean"] < values_of(metrics, 1)["entropy_mean"]


def _wanting(monkeypatch, *items):
    from entrostat.trainer_adapters.controller import Intent
    from entrostat.trainer_adapters.session import Session
    from entrostat.wire.messages import ActiveIntervention, DesiredState

    wanted = [ActiveIntervention(name=n, params=p, because="a test", by="person:anna") for n, p in items]
    state = DesiredState(version=1, interventions=wanted)
    monkeypatch.setattr(Session, "intent", lambda self, waited_s=0.0: Intent(state, waited_s=waited_s))


def _observed(probe, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 5, 11, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(0, 11, (4, 5), generator=generator)
    seen = probe.observe(
        logits=logits, labels=labels, mask=torch.ones(4, 5), advantages=torch.tensor([1.0, -1.0, 0.5, -0.5])
    )
    logps = logits.log_softmax(-1)
    return seen, logps.gather(2, labels.unsqueeze(2)).squeeze(2), -(logps.exp() * logps).sum(-1)


def test_what_is_switched_on_acts_in_the_loops_own_loss(tmp_path, monkeypatch):
    _wanting(monkeypatch, ("entropy_bonus", {"c": 0.5}), ("learning_rate", {"factor": 0.25}))
    with entrostat.Probe(directory=tmp_path, url="http://127.0.0.1:9", mode="act") as probe:
        seen, logp, entropy = _observed(probe)
        on = probe.policy_loss(logp, seen, entropy=entropy)
        plain = policy_loss(logp, seen.advantages, seen.mask).loss

        assert probe.in_force == {"entropy_bonus": {"c": 0.5}, "learning_rate": {"factor": 0.25}}
        assert probe.learning_rate_factor == 0.25
        assert float(on) == pytest.approx(float(plain - 0.5 * entropy.mean()), rel=1e-12)


def test_a_switched_on_method_without_its_needs_does_nothing_and_says_so(tmp_path, monkeypatch):
    _wanting(monkeypatch, ("entropy_bonus", {"c": 0.5}))
    with entrostat.Probe(directory=tmp_path, url="http://127.0.0.1:9", mode="act") as probe:
        seen, logp, _ = _observed(probe)

        loss = probe.policy_loss(logp, seen)

        assert float(loss) == pytest.approx(float(policy_loss(logp, seen.advantages, seen.mask).loss), rel=1e-12)
        assert any("was not given entropy" in message for message in probe.session._warned)


def test_a_loop_is_told_to_save_once_and_to_stop(tmp_path, monkeypatch):
    _wanting(monkeypatch, ("save_checkpoint", {}), ("stop", {}))
    with entrostat.Probe(directory=tmp_path, url="http://127.0.0.1:9", mode="act") as probe:
        assert [probe.should_save(), probe.should_save()] == [True, False]
        assert probe.should_stop


def test_in_mode_observe_nothing_is_put_up(tmp_path, monkeypatch):
    _wanting(monkeypatch, ("stop", {}))
    with entrostat.Probe(directory=tmp_path, url="http://127.0.0.1:9") as probe:
        assert (probe.in_force, probe.should_stop, probe.learning_rate_factor) == ({}, False, 1.0)


def test_a_loop_cannot_allow_what_it_cannot_have(tmp_path):
    with pytest.raises(AttachError, match="allow='dlc': a loop of your own does the sampling"):
        entrostat.Probe(directory=tmp_path, mode="act", allow=["dlc"])
