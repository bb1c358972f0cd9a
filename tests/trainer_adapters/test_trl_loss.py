"""Interventions inside TRL's loss against the plain policy loss, from full logits, on the same batch."""

import copy

import pytest
import torch
from support import tiny_trl

import entrostat
from entrostat.interventions.chain import chain
from entrostat.interventions.methods import METHODS
from entrostat.interventions.policy_loss import policy_loss
from entrostat.interventions.transform import GroupFacts

MANY = {"grpo": "response", "bnpo": "token", "dr_grpo": "fixed", "dapo": "fixed"}
ACTIVE = {
    "scope": {"q": 0.2, "lam": 0.7},
    "kl_cov": {"k": 0.1, "beta": 0.5},
    "clip_cov": {"r": 0.1, "w_low": -0.5, "w_high": 5.0},
    "casp": {"a": 0.2, "tau": 0.5},
    "iac": {},
    "ppl_shaping": {"alpha": 0.3},
    "position_shaping": {},
    "clip_higher": {"eps_low": 0.05, "eps_high": 0.1},
    "entropy_bonus": {"c": 0.2},
    "entropy_advantage": {},
    "forking_tokens": {"share": 0.5},
    "psr": {},
    "nsr": {},
    "w_reinforce": {},
    "selective_kl": {"strategy": "forking", "q": 0.2},
}
SEVERAL = {"iac": {}, "casp": {"a": 0.2, "tau": 0.5}, "clip_higher": {"eps_high": 0.4}, "scope": {"q": 0.2},
           "forking_tokens": {"share": 0.6}, "entropy_bonus": {"c": 0.1}}  # fmt: skip


class Bench:
    """A trainer attached in mode act, stopped on one of its own batches, with old log-probs a little off."""

    def __init__(self, folder, kind="grpo", off_policy=True, head="trainer", **settings):
        self.trainer = tiny_trl.trainer(folder, kind, max_steps=1, **settings)
        self.reference = tiny_trl.model(seed=5)
        self.handle = entrostat.attach(
            self.trainer, directory=folder / "spool", url="http://127.0.0.1:9", mode="act", reference=self.reference,
            head=head,
        )  # fmt: skip
        self.tap = self.handle.boundary.tap
        self.trainer.train()
        self.tap.session = self.handle.boundary.last_session
        self.trainer.model.train()
        self.tap.board.put({"ppl_shaping": {}})  # so that the batch has what the groups say
        torch.manual_seed(3)
        rows = [self.trainer.train_dataset[i] for i in range(4) for _ in range(4)]
        batch = self.trainer._generate_and_score_completions(rows)
        self.tap.board.put({})
        self.mask = batch["completion_mask"]
        if off_policy:
            logp = self.full(batch)["logp"].detach()
            spread = 0.02 if kind == "rloo" else 0.2  # a whole response's ratio must not be clipped for all of them
            noise = spread * torch.randn(logp.shape, generator=torch.Generator().manual_seed(1)) * self.mask
            if kind == "rloo":
                batch["old_logps"] = ((logp + noise) * self.mask).sum(1)
            else:
                batch["old_per_token_logps"] = (logp + noise) * self.mask
        self.batch = batch

    def full(self, batch, model=None):
        """Log-probs, entropy and candidates from logits that exist in full."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        model = model or self.trainer.model
        hidden = model.base_model(input_ids=ids, attention_mask=attention).last_hidden_state
        length = batch["completion_ids"].shape[1]
        logits = hidden[:, -length - 1 : -1] @ model.lm_head.weight.T / self.trainer.temperature
        logps = logits.log_softmax(-1)
        return {
            "logps": logps,
            "logp": logps.gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2),
            "entropy": -(logps.exp() * logps).sum(-1),
            "top": logps.sort(dim=2, descending=True, stable=True).values[..., :3],
            "is_top1": logps.argmax(2) == batch["completion_ids"],
        }

    def inside_trl(self, active):
        """(loss, gradients) of TRL's own loss with ``active`` on the board."""
        self.tap.board.put(active)
        self.tap.board.states.clear()
        self.trainer.current_gradient_accumulation_steps = 1
        self.trainer.model.zero_grad()
        before = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in self.batch.items()}
        loss = self.trainer._compute_loss(self.trainer.model, self.batch)
        assert self.tap.board.failure is None
        loss.backward()
        for key, value in before.items():  # the batch is used again where num_iterations > 1
            assert self.batch.keys() == before.keys()
            assert not isinstance(value, torch.Tensor) or torch.equal(value, self.batch[key]), key
        return float(loss), self._gradients()

    def plain(self, active, aggregation, normaliser=None):
        """The same by ``policy_loss``."""
        found = self.full(self.batch)
        with torch.no_grad():
            other = self.full(self.batch, self.reference)["logps"]
        gap = (found["logps"].exp() * (found["logps"] - other)).sum(-1)
        self.trainer.model.zero_grad()
        result = policy_loss(
            found["logp"], self.batch["advantages"], self.mask, old_logp=self.batch.get("old_per_token_logps"),
            transforms=chain(active), eps_low=0.2, eps_high=0.2, aggregation=aggregation, normaliser=normaliser,
            entropy=found["entropy"], top_logps=found["top"], is_top1=found["is_top1"],
            reference_kl=lambda rows: gap.reshape(-1)[rows], groups=self.batch["entrostat_prompt"],
            facts=GroupFacts(self.batch["entrostat_others"], self.batch["entrostat_ln_ppl_z"]),
        )  # fmt: skip
        result.loss.backward()
        return float(result.loss.detach()), self._gradients()

    def _gradients(self):
        return {n: p.grad.clone() for n, p in self.trainer.model.named_parameters() if p.grad is not None}

    def normaliser(self):
        kind = self.trainer.loss_type
        if kind == "dr_grpo":
            return float(self.mask.shape[0] * self.trainer.max_completion_length)
        return float(self.batch["num_items_in_batch"]) if kind == "dapo" else None


def assert_same(mine, theirs, rtol=2e-4):
    loss, gradients = mine
    expected_loss, expected = theirs
    assert loss == pytest.approx(expected_loss, rel=1e-4, abs=1e-6)
    assert gradients.keys() == expected.keys()
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=rtol, atol=2e-6 * max(1.0, largest), msg=name)


def changes(one, other):
    return any(not torch.equal(one[1][name], other[1][name]) for name in one[1])


@pytest.fixture(scope="module", params=[*((kind, "trainer") for kind in MANY), ("dapo", "entrostat")], ids="-".join)
def bench(request, tmp_path_factory):
    loss_type, head = request.param
    return Bench(tmp_path_factory.mktemp(loss_type), loss_type=loss_type, head=head)


@pytest.mark.parametrize("name", [m.name for m in METHODS])
def test_each_method_has_the_plain_loss_gradients(bench, name):
    active = {name: ACTIVE[name]}

    found = bench.inside_trl(active)

    assert_same(found, bench.plain(active, MANY[bench.trainer.loss_type], bench.normaliser()))
    assert changes(found, bench.inside_trl({})), f"{name} changed nothing: this test would not notice a mistake"


def test_our_head_gives_casp_its_candidates_without_another_product(bench, monkeypatch):
    asked = []
    monkeypatch.setattr("entrostat.trainer_adapters.trl_loss.candidate_logps", _asked(asked))

    bench.inside_trl({"casp": ACTIVE["casp"]})

    assert bool(asked) == (bench.handle.boundary.options.head == "trainer")


def _asked(asked):
    from entrostat.probe.selected_rows import candidate_logps

    def ask(*args):
        asked.append(args)
        return candidate_logps(*args)

    return ask


def test_several_at_once_have_the_plain_loss_gradients(bench):
    found = bench.inside_trl(SEVERAL)

    assert_same(found, bench.plain(SEVERAL, MANY[bench.trainer.loss_type], bench.normaliser()))


def test_nothing_on_is_the_trainers_own_loss_to_the_bit(bench):
    on = bench.inside_trl({})
    own = type(bench.trainer)._compute_loss
    bench.trainer.model.zero_grad()
    loss = own(bench.trainer, bench.trainer.model, copy.copy(bench.batch))
    loss.backward()

    if bench.handle.boundary.options.head == "entrostat":  # to float precision
        assert_same(on, (float(loss), bench._gradients()), rtol=1e-5)
        return
    assert float(loss) == on[0]
    assert all(torch.equal(g, on[1][n]) for n, g in bench._gradients().items())


def test_the_clip_range_is_the_trainers_again_afterwards(bench):
    before = bench.trainer.epsilon_low, bench.trainer.epsilon_high

    bench.inside_trl({"clip_higher": {"eps_low": 0.01, "eps_high": 0.9}})

    assert (bench.trainer.epsilon_low, bench.trainer.epsilon_high) == before


def test_on_policy_casp_scales_the_ratio_of_a_wrong_top1(tmp_path):
    bench = Bench(tmp_path, loss_type="bnpo", off_policy=False)
    bench.batch["advantages"] = -torch.ones(16)
    active = {"casp": {"a": 0.0, "lambda_top1": 1.15, "tau": 0.0}}

    found = bench.inside_trl(active)

    assert "old_per_token_logps" not in bench.batch
    assert_same(found, bench.plain(active, "token"))
    assert changes(found, bench.inside_trl({}))


def test_on_policy_kl_cov_is_silent_and_tells_so(tmp_path):
    bench = Bench(tmp_path, loss_type="bnpo", off_policy=False)

    on, off = bench.inside_trl({"kl_cov": {"k": 0.2}}), bench.inside_trl({})
    bench.inside_trl({"kl_cov": {"k": 0.2}})
    counts = bench.tap.take_counts()

    assert not changes(on, off)
    assert counts["kl_cov_tokens"] > 0
    assert counts["kl_cov_moved"] == 0
    assert any("kl_cov does nothing" in message for message in bench.tap.session._warned)


@pytest.mark.parametrize(
    "name", ["iac", "ppl_shaping", "clip_higher", "entropy_bonus", "psr", "nsr", "w_reinforce", "scope"]
)
def test_rloo_has_the_gradients_of_its_own_formula(tmp_path, name):
    bench = Bench(tmp_path, kind="rloo")
    active = {name: ACTIVE[name]}
    found = bench.inside_trl(active)

    full = bench.full(bench.batch)
    with torch.no_grad():
        other = bench.full(bench.batch, bench.reference)["logps"]
    gap = (full["logps"].exp() * (full["logps"] - other)).sum(-1)
    facts = GroupFacts(bench.batch["entrostat_others"], bench.batch["entrostat_ln_ppl_z"])
    tokens = policy_loss_tokens(bench, full, gap, active, facts)
    mask, first = bench.mask, bench.mask.argmax(1)
    ratio = ((full["logp"] * mask).sum(1) - bench.batch["old_logps"]).exp()
    advantage = tokens.advantage[torch.arange(len(first)), first]
    clipped = ratio.clamp(1 - tokens.eps_low, 1 + tokens.eps_high)
    loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    loss = loss + (tokens.penalty * mask).sum(1).mean() + tokens.extra
    bench.trainer.model.zero_grad()
    loss.backward()

    assert_same(found, (float(loss.detach()), bench._gradients()))
    assert changes(found, bench.inside_trl({}))


def policy_loss_tokens(bench, full, gap, active, facts):
    from entrostat.interventions.policy_loss import applied, tokens_of

    tokens = tokens_of(
        full["logp"], bench.batch["advantages"], bench.mask, entropy=full["entropy"], top_logps=full["top"],
        is_top1=full["is_top1"], reference_kl=lambda rows: gap.reshape(-1)[rows],
        groups=bench.batch["entrostat_prompt"], facts=facts,
    )  # fmt: skip
    return applied(tokens, chain(active), {})[0]


def test_gradient_accumulation_divides_what_is_added(tmp_path):
    bench = Bench(tmp_path, loss_type="grpo")
    bench.tap.board.put({"entropy_bonus": {"c": 0.2}, "scope": {"q": 0.2}})
    losses = []
    for steps in (1, 4):
        bench.trainer.current_gradient_accumulation_steps = steps
        losses.append(float(bench.trainer._compute_loss(bench.trainer.model, bench.batch).detach()))

    assert losses[1] == pytest.approx(losses[0] / 4, rel=1e-5)


def test_evaluation_is_not_acted_on(tmp_path):
    bench = Bench(tmp_path, loss_type="grpo")
    bench.trainer.model.eval()
    own = float(bench.trainer._compute_loss(bench.trainer.model, bench.batch))
    bench.tap.board.put({"entropy_bonus": {"c": 5.0}})

    assert float(bench.trainer._compute_loss(bench.trainer.model, bench.batch)) == own


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ({"loss_type": "cispo"}, "clip_higher", "no clipped ratio"),
        ({"loss_type": "sapo"}, "casp", "no clipped ratio"),
        ({"importance_sampling_level": "sequence"}, "casp", "one ratio a response"),
        ({"loss_type": "vespo"}, "position_shaping", "weighs whole responses"),
        ({"off_policy_mask_threshold": 1.0}, "forking_tokens", "one advantage a response"),
        ({}, "scope", "no reference model"),
        ({"kind": "rloo"}, "kl_cov", "whole responses only"),
        ({"kind": "rloo"}, "forking_tokens", "one ratio and one advantage"),
    ],
)
def test_what_a_trainer_cannot_have_is_refused_at_attach_with_the_reason(tmp_path, settings, name, reason):
    from entrostat.wire.errors import AttachError

    trainer = tiny_trl.trainer(tmp_path, **settings)

    with pytest.raises(AttachError, match=f"allow='{name}': .*{reason}"):
        entrostat.attach(trainer, directory=tmp_path / "spool", allow=[name], mode="act")
    assert (
        entrostat.attach(trainer, directory=tmp_path / "spool", mode="act").boundary.permissions.allow.count(name) == 0
    )


def test_with_beta_casp_is_refused_and_scope_has_the_trainers_reference(tmp_path):
    handle = entrostat.attach(tiny_trl.trainer(tmp_path, beta=0.04), directory=tmp_path / "spool", mode="act")

    assert "casp" not in handle.boundary.permissions.allow
    assert "scope" in handle.boundary.permissions.allow
    assert handle.boundary.tap.reference.kind == "trainer's own"
