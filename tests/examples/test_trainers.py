"""examples/trainers: each lays its trainer's tensors out as a loop of one's own would, and leaves the loss alone.

The trainers themselves need GPUs, Ray, Megatron: the stand-ins here have the signatures and layouts of the releases
that docs/trainers names. What comes out must be, signal by signal, what ``Probe`` records from the plain batch.
"""

import dataclasses
import enum
import importlib
import pickle
import sys
import types
from pathlib import Path

import pytest
import torch
from support.spool import spooled, values_of
from torch import nn

import entrostat
from entrostat.wire.signals import FAMILIES

ROOT = Path(__file__).parents[2]
NO_SERVER = "http://127.0.0.1:9"
VOCABULARY, PROMPT, RESPONSE = 11, 3, 4
TEMPERATURE = 0.7


@dataclasses.dataclass
class Batch:
    """Two responses of 4 and 3 tokens, at the end of rows of 7; the last is left-padded by one, right-padded by one."""

    logits: torch.Tensor  # [B, L, V] at the rollout's temperature; position t predicts token t + 1
    ids: torch.Tensor  # [B, L]
    attention: torch.Tensor  # [B, L]
    mask: torch.Tensor  # [B, T]
    advantages: torch.Tensor  # [B, T]
    old: torch.Tensor  # [B, T]
    rollout: torch.Tensor  # [B, T]

    @property
    def logp(self):
        """[B, T] of the response's tokens."""
        rows = slice(-RESPONSE - 1, -1)
        return self.logits[:, rows].log_softmax(-1).gather(-1, self.ids[:, -RESPONSE:].unsqueeze(-1)).squeeze(-1)

    def packed(self, value):
        """[1, N, ...] of the tokens that are not padding."""
        return value[self.attention.bool()].unsqueeze(0)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    length = PROMPT + RESPONSE
    logits = torch.randn(2, length, VOCABULARY, generator=generator) * 2
    ids = torch.randint(1, VOCABULARY, (2, length), generator=generator)
    attention = torch.ones(2, length, dtype=torch.int64)
    attention[1, 0] = attention[1, -1] = 0
    mask = torch.ones(2, RESPONSE)
    mask[1, -1] = 0
    advantages = torch.randn(2, 1, generator=generator).expand(2, RESPONSE) * mask
    made = Batch(logits, ids, attention, mask, advantages, torch.zeros(2, RESPONSE), torch.zeros(2, RESPONSE))
    noise = torch.randn(2, 2, RESPONSE, generator=generator) * 0.1
    made.old = made.logp + noise[0]
    made.rollout = made.old + noise[1]
    return made


def open_probe(folder):
    return entrostat.Probe("mine", url=NO_SERVER, directory=folder, tokens="all")


def plainly(folder, batches, without=(), **more):
    """The values of a step, observed as a loop of one's own would."""
    rows = slice(-RESPONSE - 1, -1)
    with open_probe(folder) as probe:
        for b in batches:
            given = {"advantages": b.advantages, "old_logps": b.old, "rollout_logps": b.rollout, **more}
            probe.observe(
                logits=b.logits[:, rows], labels=b.ids[:, -RESPONSE:], mask=b.mask,
                **{name: value for name, value in given.items() if name not in without},
            )  # fmt: skip
        probe.end_step(1)
    return values(folder, 1)


def values(folder, step):
    found = values_of(spooled(folder)[0]["step_metric"], step)
    # Seconds are nobody's claim, and what the trainer says of itself differs.
    apart = {signal.name for signal in FAMILIES["cost"] if not signal.name.startswith("num_")}
    return {name: value for name, value in found.items() if name not in apart and not name.startswith("trainer/")}


def same(found, expected):
    assert found.keys() == expected.keys()
    assert len(found) > 25
    for name, value in expected.items():
        assert found[name] == (value if value is None else pytest.approx(value, rel=1e-5, abs=1e-6)), name


@pytest.fixture
def example(monkeypatch):
    """Imports one of examples/trainers anew, with stand-ins for the modules of its trainer."""

    def load(name, **stand_ins):
        monkeypatch.syspath_prepend(str(ROOT / "examples" / "trainers"))
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delitem(sys.modules, "shared", raising=False)
        for path, members in stand_ins.items():
            parts = path.replace("__", ".").split(".")
            for i in range(1, len(parts) + 1):
                whole = ".".join(parts[:i])
                if whole not in sys.modules:
                    monkeypatch.setitem(sys.modules, whole, types.ModuleType(whole))
                    if i > 1:
                        monkeypatch.setattr(
                            sys.modules[".".join(parts[: i - 1])], parts[i - 1], sys.modules[whole], raising=False
                        )
            for member, value in members.items():
                monkeypatch.setattr(sys.modules[".".join(parts)], member, value, raising=False)
        return importlib.import_module(name)

    return load


# OpenRLHF -----------------------------------------------------------------------------------------------------------


class OpenRlhfActor(nn.Module):
    """``openrlhf.models.actor.Actor``: forward gives (log-probs, output with the tempered logits of all positions)."""

    def __init__(self, packing):
        super().__init__()
        self.packing = packing

    def forward(self, sequences, action_mask=None, attention_mask=None, return_output=False, **_):
        b = self.batch
        assert sequences is b.ids
        logits = (b.packed(b.logits) if self.packing else b.logits.clone()).requires_grad_()
        self.leaf = logits
        # As in the package: the log-probs come out of the logits, padding is 0.
        return b.logp.requires_grad_() * action_mask, {"logits": logits}


class OpenRlhfLoss(nn.Module):
    """``openrlhf.models.loss.PolicyLoss``."""

    def forward(self, log_probs, old_log_probs, advantages, action_mask=None, rollout_log_probs=None, **_):
        return (-(log_probs - old_log_probs).exp() * advantages * action_mask).sum(), *[torch.zeros(())] * 4


class OpenRlhfTrainer:
    """``ActorPPOTrainer``: what ``ppo_train`` and ``training_step`` call, in their order."""

    def __init__(self, packing):
        self.actor, self.actor_loss_fn = OpenRlhfActor(packing), OpenRlhfLoss()
        self.strategy = types.SimpleNamespace(ring_attn_group=None)
        self.args = types.SimpleNamespace(ds=types.SimpleNamespace(tensor_parallel_size=1, packing_samples=packing))
        self.losses = []

    def training_step(self, experience, kl_ctl, step, loss_batch_info=None):
        logp, _ = self.actor(
            experience.sequences, experience.action_mask, attention_mask=experience.attention_mask, return_output=True
        )
        loss, *_ = self.actor_loss_fn(
            logp, experience.action_log_probs, experience.advantages,
            action_mask=experience.action_mask, rollout_log_probs=experience.rollout_log_probs,
        )  # fmt: skip
        self.losses.append(loss)
        return {"policy_loss": loss.detach()}

    def ppo_train(self, kl_ctl):
        for i, b in enumerate(self.batches):
            self.actor.batch = b
            self.training_step(
                types.SimpleNamespace(
                    sequences=b.ids, attention_mask=b.attention, action_mask=b.mask, action_log_probs=b.old,
                    rollout_log_probs=b.rollout, advantages=b.advantages, prompts=["a", "b"],
                    truncated=torch.tensor([0.0, 1.0]), info={"reward": torch.tensor([1.0, 0.0])},
                ),
                kl_ctl,
                i,
            )  # fmt: skip
        return {"policy_loss": 0.5, "names": ["x"]}


@pytest.mark.parametrize("packing", [False, True])
def test_openrlhf(example, tmp_path, packing):
    module, batches = example("watch_openrlhf"), [batch(0), batch(1)]
    numbers = torch.tensor([module._number("a"), module._number("b")])
    alone, trainer = OpenRlhfTrainer(packing), OpenRlhfTrainer(packing)
    alone.batches = trainer.batches = batches
    alone.ppo_train(0.0)

    with open_probe(tmp_path / "seen") as probe:
        module.watch(trainer, probe)
        trainer.ppo_train(0.0)

    same(
        values(tmp_path / "seen", 1),
        plainly(
            tmp_path / "plain", batches, groups=numbers,
            rewards=torch.tensor([1.0, 0.0]), truncated=torch.tensor([False, True]),
        ),
    )  # fmt: skip
    metrics = spooled(tmp_path / "seen")[0]["step_metric"]
    assert values_of(metrics, 1)["trainer/policy_loss"] == 0.5
    assert [loss.item() for loss in trainer.losses] == [loss.item() for loss in alone.losses]


def test_openrlhf_refuses_parts_of_responses(example):
    trainer = OpenRlhfTrainer(False)
    trainer.strategy.ring_attn_group = object()

    with pytest.raises(ValueError, match="ring attention"):
        example("watch_openrlhf").watch(trainer, None)


def test_openrlhf_actors_are_replaced_before_the_command_takes_them(example, monkeypatch, tmp_path):
    class Actor:
        def init_model_from_pretrained(self, strategy, pretrain, max_steps=None, vllm_engines=None):
            self.trainer = OpenRlhfTrainer(False)

    decorated = types.SimpleNamespace(__ray_actor_class__=Actor)
    module = example(
        "watch_openrlhf",
        ray={"remote": lambda num_gpus: lambda cls: types.SimpleNamespace(__ray_actor_class__=cls)},
        openrlhf__trainer__ray__ppo_actor={"PolicyModelActor": decorated},
    )
    module.install("mine", url=NO_SERVER, directory=tmp_path)

    actor = sys.modules["openrlhf.trainer.ray.ppo_actor"].PolicyModelActor.__ray_actor_class__()
    actor.init_model_from_pretrained(None, "model")

    assert actor.trainer.ppo_train.__qualname__.startswith("watch.")


# SkyRL --------------------------------------------------------------------------------------------------------------


class SkyrlModel(nn.Module):
    """``HFModelWrapper``."""

    def __init__(self, packing):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.sequence_parallel_size, self.remove_microbatch_padding = 1, packing

    def forward(self, sequences, num_actions, attention_mask=None, temperature=1.0, return_output=False, **_):
        b = self.batch
        logits = b.packed(b.logits) if self.remove_microbatch_padding else b.logits.clone()
        return b.logp.requires_grad_(), {"logits": logits}


class SkyrlWorker:
    """``PolicyWorkerBase``: a mini-batch in micro-batches; its advantages were divided by its tokens on the driver."""

    def __init__(self, packing, reduction):
        self.model = SkyrlModel(packing)
        algorithm = types.SimpleNamespace(enable_sample_support_replay=False, loss_reduction=reduction)
        self.cfg, self.losses = types.SimpleNamespace(algorithm=algorithm), []
        self.policy_loss_fn = self.regular

    @staticmethod
    def regular(log_probs, old_log_probs, advantages, config, loss_mask=None, rollout_logprobs=None):
        return (-(log_probs - old_log_probs).exp() * advantages * loss_mask).sum(), {"clip_ratio": 0.0}

    def forward_backward(self, data, loss_fn=None, loss_fn_config=None, return_per_token_outputs=True):
        for b, scaled in zip(data["batches"], data["advantages"], strict=True):
            self.model.batch = b
            logp, _ = self.model(b.ids, RESPONSE, attention_mask=b.attention, temperature=0.7, return_output=True)
            loss, _ = self.policy_loss_fn(
                logp, b.old, scaled, config=self.cfg.algorithm, loss_mask=b.mask, rollout_logprobs=b.rollout
            )
            self.losses.append(loss.item())

    def optim_step(self):
        return 0.25


@pytest.mark.parametrize(
    ("packing", "reduction"), [(False, "token_mean"), (True, "token_mean"), (False, "sequence_mean")]
)
def test_skyrl(example, tmp_path, packing, reduction):
    batches = [batch(0), batch(1)]
    mask = torch.cat([b.mask for b in batches])
    data = {"batches": batches, "loss_mask": mask, "advantages": [b.advantages / mask.sum() for b in batches]}
    alone, worker = SkyrlWorker(packing, reduction), SkyrlWorker(packing, reduction)
    alone.forward_backward(data)

    with open_probe(tmp_path / "seen") as probe:
        example("watch_skyrl").watch(worker, probe)
        worker.forward_backward(data)
        assert worker.optim_step() == 0.25

    without = () if reduction == "token_mean" else ("advantages",)
    same(values(tmp_path / "seen", 1), plainly(tmp_path / "plain", batches, without))
    assert worker.losses == alone.losses


def test_skyrl_workers_are_replaced_before_the_entrypoint_takes_them(example, tmp_path):
    class Worker(SkyrlWorker):
        def __init__(self):
            super().__init__(False, "token_mean")

        def init_model(self, model_path, num_training_steps=None):
            self.path = model_path

    module = example(
        "watch_skyrl",
        ray={"remote": lambda num_gpus: lambda cls: cls},
        skyrl__backends__skyrl_train__workers__fsdp__fsdp_worker={"FSDPPolicyWorkerBase": Worker, "PolicyWorker": None},
    )
    module.install("mine", url=NO_SERVER, directory=tmp_path)

    worker = sys.modules["skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker"].PolicyWorker()
    worker.init_model("path")

    assert worker.path == "path"
    assert worker.optim_step.__qualname__.startswith("watch.")


def test_skyrl_refuses_parts_of_responses(example):
    worker = SkyrlWorker(False, "token_mean")
    worker.model.sequence_parallel_size = 2

    with pytest.raises(ValueError, match="no sequence parallelism"):
        example("watch_skyrl").watch(worker, None)


# NeMo-RL ------------------------------------------------------------------------------------------------------------


class LossInputType(enum.Enum):
    LOGIT = "logit"
    LOGPROB = "logprob"


class ClippedPGLossFn:
    """Of nemo_rl.algorithms.loss; gets log-probs [B, L - 1]."""

    input_type, loss_type = LossInputType.LOGPROB, "token_level"
    reference_policy_kl_penalty, force_on_policy_ratio = 0.0, False

    def __call__(self, next_token_logprobs, data, global_valid_seqs, global_valid_toks):
        ratio = (next_token_logprobs - data["prev_logprobs"][:, 1:]).exp()
        mask = (data["token_mask"] * data["sample_mask"].unsqueeze(-1))[:, 1:]
        return (-ratio * data["advantages"][:, 1:] * mask).sum() / global_valid_toks, {"loss": 0.0}


def get_next_token_logprobs_from_logits(input_ids, next_token_logits, seq_index=None, sampling_params=None):
    logp = next_token_logits.float().log_softmax(-1)[:, :-1]
    return logp.gather(-1, input_ids[:, 1:].unsqueeze(-1)).squeeze(-1)


def nemo_data(b):
    def whole(value):  # at the token's own position, zeros on the prompt
        return torch.cat([torch.zeros(2, PROMPT), value], 1)

    return {
        "input_ids": b.ids, "token_mask": whole(b.mask), "sample_mask": torch.ones(2),
        "advantages": whole(b.advantages), "prev_logprobs": whole(b.old), "generation_logprobs": whole(b.rollout),
    }  # fmt: skip


def test_nemo_rl(example, tmp_path, monkeypatch):
    module = example(
        "watch_nemo_rl",
        nemo_rl__distributed__model_utils={"get_next_token_logprobs_from_logits": get_next_token_logprobs_from_logits},
    )
    monkeypatch.setattr(module.atexit, "register", lambda _: None)
    batches, loss_fn = [batch(0), batch(1)], ClippedPGLossFn()
    watched = module.Watched(loss_fn, "mine", VOCABULARY, url=NO_SERVER, directory=tmp_path / "seen", tokens="all")
    assert watched.input_type is LossInputType.LOGIT
    assert watched.reference_policy_kl_penalty == 0.0

    for _step in range(2):  # the driver pickles it for each policy.train
        arrived = pickle.loads(pickle.dumps(watched))
        for b in batches:
            data, named = nemo_data(b), {"global_valid_seqs": torch.tensor(4), "global_valid_toks": torch.tensor(14)}
            found, _ = arrived(data=data, logits=b.logits, **named)
            expected, _ = loss_fn(get_next_token_logprobs_from_logits(b.ids, b.logits), data, *named.values())
            assert torch.equal(found, expected)
    module.end()
    module._HERE["probe"].close()

    expected = nemo_plainly(tmp_path / "plain", batches)
    same(values(tmp_path / "seen", 1), expected)
    assert values(tmp_path / "seen", 2)["entropy_mean"] == pytest.approx(expected["entropy_mean"], rel=1e-5)


def nemo_plainly(folder, batches):
    """NeMo-RL's rows hold the prompt too, masked: positions of tokens are counted from the row's begin."""
    with open_probe(folder) as probe:
        for b in batches:
            data = nemo_data(b)
            probe.observe(
                logits=b.logits[:, :-1], labels=b.ids[:, 1:], mask=data["token_mask"][:, 1:],
                advantages=data["advantages"][:, 1:], old_logps=data["prev_logprobs"][:, 1:],
                rollout_logps=data["generation_logprobs"][:, 1:],
            )  # fmt: skip
        probe.end_step(1)
    found = values(folder, 1)
    by_hand = torch.cat([_entropies(b) for b in batches]).mean().item()
    assert found["entropy_mean"] == pytest.approx(by_hand, rel=1e-5)
    return found


def _entropies(b):
    logp = b.logits[:, -RESPONSE - 1 : -1].double().log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)[b.mask != 0]


def test_nemo_rl_stops_where_logits_are_not_whole(example, tmp_path):
    module = example("watch_nemo_rl", nemo_rl__distributed__model_utils={"get_next_token_logprobs_from_logits": None})
    watched = module.Watched(ClippedPGLossFn(), "mine", 2 * VOCABULARY)
    with pytest.raises(ValueError, match="tensor_parallel_size 1"):
        watched(logits=batch(0).logits, data={}, global_valid_seqs=None, global_valid_toks=None)

    fused = ClippedPGLossFn()
    fused.use_fused_linear_logprobs = True
    with pytest.raises(ValueError, match="switch it off"):
        module.Watched(fused, "mine", VOCABULARY)


# prime-rl -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class LossInputs:
    trainer_logprobs: torch.Tensor
    inference_logprobs: torch.Tensor
    ref_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    loss_mask: torch.Tensor
    loss_weights: torch.Tensor | None = None


class FusedOutputLinear(nn.Linear):
    """Of prime_rl.trainer.models.layers.lm_head."""

    def forward(self, hidden_states, labels=None, temperature=None):
        logits = (hidden_states @ self.weight.t()).float() / temperature.unsqueeze(-1)
        logp = logits.log_softmax(-1)
        return {"logprobs": logp.gather(-1, labels.unsqueeze(-1)).squeeze(-1), "logits": logits.detach()}


def prime_loss(inputs, loss_config):
    ratio = (inputs.trainer_logprobs - inputs.inference_logprobs).exp()
    return -(ratio * inputs.advantages * inputs.loss_mask).sum() * loss_config.adv_tau


def test_prime_rl(example, tmp_path, monkeypatch):
    head_class = type("FusedOutputLinear", (FusedOutputLinear,), {"forward": FusedOutputLinear.forward})
    module = example(
        "watch_prime_rl",
        prime_rl__trainer__models__layers__lm_head={"FusedOutputLinear": head_class},
        prime_rl__trainer__rl__loss={"default_loss_fn": prime_loss},
        prime_rl__configs__trainer={"DefaultLossConfig": lambda adv_tau=1.0: types.SimpleNamespace(adv_tau=adv_tau)},
    )
    monkeypatch.setenv("ENTROSTAT_RUN", "mine")
    monkeypatch.setenv("ENTROSTAT_DIR", str(tmp_path / "seen"))
    monkeypatch.setenv("ENTROSTAT_URL", NO_SERVER)
    generator = torch.Generator().manual_seed(3)
    lengths, width = [6, 5], 8
    hidden = torch.randn(1, sum(lengths), width, generator=generator)
    ids = torch.randint(0, VOCABULARY, (1, sum(lengths)), generator=generator)
    head = head_class(width, VOCABULARY, bias=False)
    nn.init.normal_(head.weight, generator=generator)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.0)
    labels = torch.cat([ids[:, 1:], torch.zeros(1, 1, dtype=ids.dtype)], 1)  # shift_tensor_left
    output = head(hidden, labels, torch.full((1, sum(lengths)), TEMPERATURE))
    shifted = torch.cat([torch.zeros(1, 1), output["logprobs"][:, :-1]], 1)  # shift_tensor_right
    inference = (shifted.detach() + 0.1).squeeze().split(lengths)
    plain_losses, losses, samples = [], [], []
    for sample, other in zip(shifted.squeeze().split(lengths), inference, strict=True):
        mask = torch.arange(len(sample)) >= 2  # a prompt of two tokens
        inputs = LossInputs(sample, other, None, torch.full_like(sample, 0.5), mask)
        losses.append(module.loss(inputs, adv_tau=2.0))
        plain_losses.append(prime_loss(inputs, types.SimpleNamespace(adv_tau=2.0)))
        samples.append((mask, other))
    sum(losses).backward()
    optimizer.step()
    module._NOW["probe"].close()
    module._NOW.clear()  # the optimizers of other tests are not its business

    assert losses == plain_losses
    with open_probe(tmp_path / "plain") as probe:
        begin = 0
        for length, (mask, other) in zip(lengths, samples, strict=True):
            probe.observe(
                logits=output["logits"][:, begin : begin + length - 1], labels=ids[:, begin + 1 : begin + length],
                mask=mask[None, 1:], advantages=torch.full((1, length - 1), 0.5), old_logps=other[None, 1:],
            )  # fmt: skip
            begin += length
        probe.end_step(1)
    expected, found = values(tmp_path / "plain", 1), values(tmp_path / "seen", 1)
    # From hidden states there is more: their norms, and what needs them.
    assert set(found) - set(expected) == {name for name in found if "norm" in name or "scope" in name} - set(expected)
    same({name: found[name] for name in expected}, expected)


# slime --------------------------------------------------------------------------------------------------------------


def slime_arguments(**changed):
    settings = dict(
        tensor_model_parallel_size=1, pipeline_model_parallel_size=1, context_parallel_size=1,
        recompute_loss_function=False, rollout_temperature=TEMPERATURE,
    )  # fmt: skip
    return types.SimpleNamespace(**(settings | changed))


def slime_batch(b):
    """One packed row [1, T, V] with raw logits; lists of responses' own tensors."""
    lengths = [int(n) for n in b.mask.sum(1)]
    whole = [row[kept.bool()] for row, kept in zip(b.ids, b.attention, strict=True)]

    def responses(value):
        return [value[i, :n] for i, n in enumerate(lengths)]

    return {
        "unconcat_tokens": whole, "total_lengths": [len(t) for t in whole], "response_lengths": lengths,
        "loss_masks": responses(b.mask), "advantages": responses(b.advantages), "log_probs": responses(b.old),
        "rollout_log_probs": responses(b.rollout),
    }, b.packed(b.logits) * TEMPERATURE  # fmt: skip


def test_slime(example, tmp_path, monkeypatch):
    def policy_loss_function(args, batch, logits, sum_of_sample_mean):
        return sum_of_sample_mean(logits), {"loss": 1.0}

    module = example(
        "watch_slime", slime__backends__megatron_utils__loss={"policy_loss_function": policy_loss_function}
    )
    monkeypatch.setattr(module.atexit, "register", lambda _: None)
    monkeypatch.setenv("ENTROSTAT_RUN", "mine")
    monkeypatch.setenv("ENTROSTAT_DIR", str(tmp_path / "seen"))
    monkeypatch.setenv("ENTROSTAT_URL", NO_SERVER)
    batches, arguments = [batch(0), batch(1)], slime_arguments()
    for step in range(2):
        module.before_step(arguments, 0, step, None, None, None)
        for b in batches:
            given, logits = slime_batch(b)
            found, _ = module.loss(arguments, given, logits, torch.sum)
            assert found == logits.sum()
    module.end()
    module._HERE["probe"].close()

    expected = plainly(tmp_path / "plain", batches)
    same(values(tmp_path / "seen", 1), expected)
    assert values(tmp_path / "seen", 2)["entropy_mean"] == pytest.approx(expected["entropy_mean"], rel=1e-5)


@pytest.mark.parametrize("changed", [{"tensor_model_parallel_size": 2}, {"recompute_loss_function": True}])
def test_slime_refuses_logits_in_parts(example, changed):
    module = example("watch_slime", slime__backends__megatron_utils__loss={"policy_loss_function": None})

    with pytest.raises(ValueError, match="tensor_model_parallel_size"):
        module.before_step(slime_arguments(**changed), 0, 0)


# All ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["openrlhf", "skyrl", "nemo_rl", "prime_rl", "slime"])
def test_each_page_prints_its_example_as_it_is(page):
    text = (ROOT / "docs" / "trainers" / f"{page.replace('_', '-')}.md").read_text()
    code = (ROOT / "examples" / "trainers" / f"watch_{page}.py").read_text()

    assert f"```python\n{code}```\n" in text


def test_what_the_examples_share_is_printed_where_the_pages_begin():
    text = (ROOT / "docs" / "trainers" / "README.md").read_text()

    assert f"```python\n{(ROOT / 'examples' / 'trainers' / 'shared.py').read_text()}```\n" in text


def test_our_failure_is_not_the_trainers(example, tmp_path, monkeypatch):
    trainer = OpenRlhfTrainer(False)
    trainer.batches = [batch(0)]
    with open_probe(tmp_path) as probe:
        monkeypatch.setattr(probe, "observe", lambda **_: 1 / 0)
        example("watch_openrlhf").watch(trainer, probe)
        trainer.ppo_train(0.0)

    assert len(trainer.losses) == 1
    events = spooled(tmp_path)[0]["event"]
    assert events.message.str.contains("division by zero").any()
