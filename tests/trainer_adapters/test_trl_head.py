"""Our head in TRL's place: outputs, gradients and trainings are TRL's to float precision; one product a token."""

import contextlib

import numpy as np
import pytest
import torch
from support import tiny_trl
from support.spool import spooled, values_of
from torch.utils._python_dispatch import TorchDispatchMode
from trl.trainer.utils import FusedCausalLMOutput, add_fused_lm_head

import entrostat
from entrostat.trainer_adapters.trl_head import OwnHead
from entrostat.wire.errors import AttachError

NO_SERVER = "http://127.0.0.1:9"  # the discard port: nobody answers, everything stays in the spool
OUTPUTS = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


def attach(trainer, folder, **options):
    return entrostat.attach(trainer, url=NO_SERVER, directory=folder, **options)


def failed(message):
    raise AssertionError(message)


def assert_close(found, expected, rel=1e-5, what=""):
    """Relative to the largest entry."""
    scale = expected.abs().max().clamp(min=1e-12)
    error = ((found - expected).abs().max() / scale).item()
    assert error < rel, (what, error)


# One forward ------------------------------------------------------------------------------------------------------


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(2, 22, (5, 12), generator=generator)
    attention = torch.ones_like(ids)
    attention[0, :3] = attention[2, -4:] = attention[4, :5] = 0
    labels = ids.masked_fill(attention == 0, -100)
    labels[:, :4] = -100
    return {"input_ids": ids, "attention_mask": attention, "labels": labels}


def both(model, batch, rel=1e-5, context=contextlib.nullcontext, **settings):
    """Outputs and gradients of TRL's head and of ours, compared."""
    add_fused_lm_head(model, outputs=OUTPUTS, **settings)
    own = OwnHead(model.forward, 5, failed)
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(2, 5, 11, generator=generator)
    found = []
    for forward in (model.forward, own.forward):
        model.zero_grad()
        with context():
            output = forward(**batch, fused_lm_head=True)
        (output.log_probs * weights[0] + output.entropy * weights[1]).sum().backward()
        found.append((output, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}))
    (theirs, expected), (ours, gradients) = found
    assert type(ours) is FusedCausalLMOutput
    assert theirs.keys() == ours.keys()
    for name in ("loss", *OUTPUTS[:-1]):
        assert ours[name].dtype == theirs[name].dtype
        assert ours[name].requires_grad == theirs[name].requires_grad, name
        # Of the very same products, whatever dtype they are in.
        assert_close(ours[name], theirs[name], 1e-5, name)
    assert torch.equal(ours.label_mask, theirs.label_mask)
    assert torch.equal(ours.is_top1, theirs.is_top1)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert_close(gradient, expected[name], rel, name)


@pytest.mark.parametrize(
    "config", [{}, {"final_logit_softcapping": 0.5}, {"logit_scale": 3.0}, {"logits_scaling": 0.25}], ids=str
)
def test_outputs_and_gradients_are_those_of_trls_head(batch, config):
    both(tiny_trl.model(**config), batch, temperature=0.7)


def test_tied_embeddings_add_their_gradient_to_the_heads(batch):
    both(tiny_trl.model(tie_word_embeddings=True), batch)


def test_a_head_with_a_bias(batch):
    model = tiny_trl.model()
    model.lm_head.bias = torch.nn.Parameter(torch.randn(22, generator=torch.Generator().manual_seed(1)))

    both(model, batch)


def test_in_bfloat16_the_products_are_trls_too(batch):
    # Gradients of tiles are rounded to bfloat16 by TRL before their product, and not by us.
    both(tiny_trl.model(), batch, rel=0.02, context=lambda: torch.autocast("cpu", torch.bfloat16))


def test_cast_lm_head_to_fp32_is_heeded_under_autocast(batch):
    both(
        tiny_trl.model(), batch, rel=0.02, cast_lm_head_to_fp32=True,
        context=lambda: torch.autocast("cpu", torch.bfloat16),
    )  # fmt: skip


def test_candidates_are_those_of_full_logits_with_gradient(batch):
    model = tiny_trl.model()
    add_fused_lm_head(model, outputs=OUTPUTS, temperature=0.7)
    own = OwnHead(model.forward, 5, failed)
    own.forward(**batch, fused_lm_head=True)
    scored = own.take()
    mask = batch["labels"][:, 1:] != -100
    hidden = model.base_model(**{k: batch[k] for k in ("input_ids", "attention_mask")}).last_hidden_state[:, :-1]
    logps = (hidden @ model.lm_head.weight.T / 0.7).log_softmax(-1)
    expected = logps.sort(dim=-1, descending=True, stable=True).values[..., :5]

    candidates = scored.candidates(11)
    stats = scored.measure(11)(mask.reshape(-1).nonzero().squeeze(1))
    found, wanted = (
        torch.autograd.grad(c[mask].square().sum(), model.lm_head.weight)[0] for c in (candidates, expected)
    )

    assert_close(candidates[mask], expected[mask])
    assert_close(found, wanted)
    assert torch.equal(stats.top_logps, candidates[mask].detach())


def test_a_batch_without_any_label_gives_zeros_that_are_part_of_the_graph(batch):
    model = tiny_trl.model()
    batch["labels"][:] = -100
    add_fused_lm_head(model, outputs=OUTPUTS)
    own = OwnHead(model.forward, 5, failed)

    output = own.forward(**batch, fused_lm_head=True)
    output.log_probs.sum().backward()

    assert output.log_probs.abs().max() == 0
    assert model.lm_head.weight.grad is None or model.lm_head.weight.grad.abs().max() == 0
    assert own.take().measure(11) is None


def test_a_trl_that_names_its_op_otherwise_is_refused():
    model = tiny_trl.model()  # the forward of a model without a fused head calls no such thing

    with pytest.raises(AttachError, match="_ChunkedLogProbFunction"):
        OwnHead(model.forward, 5, failed)


# Whole trainings --------------------------------------------------------------------------------------------------


def lora():
    peft = pytest.importorskip("peft", reason="PEFT is part of the dev extra; without it there is nothing to test")
    return peft.get_peft_model(tiny_trl.model(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


def first_gradients(trainer):
    """The gradients of the first micro-batch, by name, and every loss, once it has trained."""
    gradients, losses = {}, []
    original = trainer.training_step

    def training_step(*args, **kwargs):
        loss = original(*args, **kwargs)
        losses.append(loss.item())
        if not gradients:
            gradients.update({n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None})
        return loss

    trainer.training_step = training_step
    trainer.train()
    return gradients, losses


@pytest.mark.parametrize(
    ("kind", "settings", "policy"),
    [
        ("grpo", {}, None),
        ("grpo", {"entropy_coef": 0.05}, None),
        ("grpo", {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}, None),
        ("grpo", {"num_iterations": 2, "loss_type": "grpo", "top_entropy_quantile": 0.5}, None),
        ("grpo", {"gradient_checkpointing": True, "beta": 0.1}, None),
        ("grpo", {"gradient_checkpointing": True}, lora),
        ("rloo", {"num_iterations": 2}, None),
    ],
)
def test_a_training_is_the_one_with_trls_head_to_float_precision(tmp_path, kind, settings, policy, monkeypatch):
    found = []
    for head in ("trainer", "entrostat"):
        # Not AdamW: it moves a weight whose gradient is rounding alone as far as any other.
        step = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 4}
        trainer = tiny_trl.trainer(tmp_path / "out", kind, policy=policy and policy(), **step, **settings)
        start = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
        attach(trainer, tmp_path / head, head=head)
        if head == "entrostat":
            monkeypatch.setattr("entrostat.trainer_adapters.trl_policy.from_hidden", failed)
        gradients, losses = first_gradients(trainer)
        found.append((gradients, losses, dict(trainer.model.named_parameters())))

    (expected, losses, weights), (gradients, own_losses, own_weights) = found
    assert own_losses == pytest.approx(losses, rel=1e-4, abs=1e-6)
    assert gradients.keys() == expected.keys()
    # To the largest gradient: those that cancel (a key's bias) are rounding alone.
    largest = max(g.abs().max().item() for g in expected.values())
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).abs().max().item() < 1e-5 * largest, name
    moved = max((weights[name] - before).abs().max().item() for name, before in start.items())
    assert moved > 1e-3
    for name in start:
        assert (own_weights[name] - weights[name]).abs().max().item() < 2e-5 * moved, name
    events = spooled(tmp_path / "entrostat")[0]["event"]
    assert (events.kind == "warning").sum() == 0


class HeadRows(TorchDispatchMode):
    """Rows of every product that has the vocabulary's 22 columns."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm) and out.shape[-1] == 22:
            self.rows.append(out.shape[0])
        return out


def test_each_token_of_the_loss_meets_the_head_once(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", max_steps=1)
    attach(trainer, tmp_path / "spool", head="entrostat")
    original, counted = trainer._compute_loss, []

    def compute_loss(model, inputs, *args, **kwargs):
        with HeadRows() as seen:
            loss = original(model, inputs, *args, **kwargs)
        counted.append((sum(seen.rows), int(inputs["completion_mask"].sum())))
        return loss

    trainer._compute_loss = compute_loss
    trainer.train()

    assert counted
    assert all(rows == tokens > 0 for rows, tokens in counted)
    values = values_of(spooled(tmp_path / "spool")[0]["step_metric"], 1)
    assert {"rank_logp_1", "rank_logp_2", "top1_rate", "self_certainty"} <= set(values)


def test_signals_over_candidates_are_exact_whatever_the_budget(tmp_path):
    values = {}
    for name, options in {"sample": {"tokens": 10}, "all": {"tokens": "all"}}.items():
        trainer = tiny_trl.trainer(tmp_path / "out", max_steps=2)
        attach(trainer, tmp_path / name, head="entrostat", **options)
        trainer.train()
        tables, openings = spooled(tmp_path / name)
        values[name] = values_of(tables["step_metric"], 2)
        assert openings[0]["settings"]["head"] == "entrostat"
        assert (len(tables["token"]) <= 20) == (name == "sample")
        assert np.stack(tables["token"].top_ids.to_numpy()).min() >= 0

    over_candidates = [k for k in values["all"] if k.startswith("rank_logp_") or k in ("self_certainty", "support95")]
    assert over_candidates
    for key in over_candidates:
        assert values["sample"][key] == values["all"][key], key


def test_without_candidates_our_head_still_trains(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out")
    attach(trainer, tmp_path / "spool", head="entrostat", without=["candidates"])
    trainer.train()

    values = values_of(spooled(tmp_path / "spool")[0]["step_metric"], 3)
    assert "entropy_mean" in values
    assert "rank_logp_2" not in values


def test_where_ours_fails_trls_head_does_it_and_it_is_said(tmp_path, monkeypatch):
    def broken(*_args, **_kwargs):
        raise RuntimeError("planted")

    weights = []
    for head in ("trainer", "entrostat"):
        trainer = tiny_trl.trainer(tmp_path / "out")
        attach(trainer, tmp_path / head, head=head)
        monkeypatch.setattr("entrostat.trainer_adapters.trl_head.fused_head", broken)
        trainer.train()
        weights.append([p.detach() for p in trainer.model.parameters()])

    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    events = spooled(tmp_path / "entrostat")[0]["event"]
    assert events[events.kind == "warning"].message.str.contains("TRL's own head.*planted").sum() == 1


def test_detach_puts_trls_head_back(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out")
    before = trainer.model.forward

    attach(trainer, tmp_path / "spool", head="entrostat").detach()

    assert trainer.model.forward == before


# Options and refusals ---------------------------------------------------------------------------------------------


def test_the_environment_says_which_head(tmp_path, monkeypatch):
    monkeypatch.setenv("ENTROSTAT_HEAD", "entrostat")
    assert attach(tiny_trl.trainer(tmp_path / "a"), tmp_path).boundary.options.head == "entrostat"
    assert attach(tiny_trl.trainer(tmp_path / "b"), tmp_path, head="trainer").boundary.options.head == "trainer"
    monkeypatch.setenv("ENTROSTAT_HEAD", "mine")
    with pytest.raises(ValueError, match="head='mine'"):
        attach(tiny_trl.trainer(tmp_path / "c"), tmp_path)


def spread(trainer, _):
    trainer.is_fsdp_enabled = True


def partitioned(trainer, monkeypatch):
    plugin = type("Plugin", (), {"zero_stage": 3})
    monkeypatch.setattr(type(trainer.accelerator.state), "deepspeed_plugin", property(lambda _: plugin))


def in_threads(trainer, _):
    trainer.args._n_gpu = 2


def quantised(trainer, _):
    head = trainer.model.lm_head
    head.weight = torch.nn.Parameter(head.weight.to(torch.int8), requires_grad=False)


def in_eight_bits(trainer, _):
    head = trainer.model.lm_head
    head.weight = torch.nn.Parameter(head.weight.to(torch.float8_e4m3fn), requires_grad=False)


def adapted(trainer, _):
    trainer.model.lm_head.base_layer = torch.nn.Identity()


def elsewhere(trainer, _):
    trainer.model.lm_head.weight.data = torch.empty(0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (spread, "FSDP"),
        (partitioned, "ZeRO-3"),
        (in_threads, "DataParallel"),
        (quantised, "quantised.*int8"),
        (in_eight_bits, "quantised.*float8"),
        (adapted, "adapter"),
        (elsewhere, "not whole"),
    ],
)
def test_where_it_cannot_stand_in_attach_says_why(tmp_path, change, reason, monkeypatch):
    trainer = tiny_trl.trainer(tmp_path / "out")
    change(trainer, monkeypatch)

    with pytest.raises(AttachError, match=f'head="entrostat": .*{reason}.*head="trainer"'):
        attach(trainer, tmp_path / "spool", head="entrostat")
    assert not hasattr(trainer, "_entrostat_handle")


def test_supervised_training_has_its_own_head(tmp_path):
    from support import tiny_sft

    trainer = tiny_sft.sft(tmp_path / "out")
    with pytest.raises(AttachError, match="GRPO and RLOO"):
        attach(trainer, tmp_path / "spool", head="entrostat")
