"""DLC: the logits are those of the formula, the memory learns what was sampled, and without mu nothing changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from support import tiny_trl
from support.service import free_port
from transformers import (
    GemmaConfig,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LogitsProcessor,
    LogitsProcessorList,
    Qwen3Config,
    Qwen3MoeConfig,
    TrainerCallback,
)

import entrostat
from entrostat.interventions.dlc import METHOD, DlcParams
from entrostat.trainer_adapters.sampling.memory_lm import MemoryLM, Rollouts
from entrostat.trainer_adapters.sampling.memory_logits import MemoryLogits
from entrostat.trainer_adapters.sampling.smaller import smaller_memory
from entrostat.trainer_adapters.sampling.trl_dlc import DlcSampling
from entrostat.wire.errors import AttachError

MU, TEMPERATURE = 0.5, 0.7


def memory(seed=3, kind="qwen2", **options):
    """A memory whose logits are far from 0, unlike a new one's; GPT-2's positions are absolute, Qwen's relative."""
    if kind == "gpt2":
        torch.manual_seed(seed)
        sizes = {"vocab_size": 22, "n_layer": 1, "n_embd": 32, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1}
        model = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.3, tie_word_embeddings=False))
    else:
        model = tiny_trl.model(seed, num_hidden_layers=1)
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(20)
    return MemoryLM(model, **options)


def prompts(*lengths):
    """Left-padded to the longest."""
    width = max(lengths)
    mask = torch.tensor([[0] * (width - n) + [1] * n for n in lengths])
    ids = torch.randint(2, 22, mask.shape, generator=torch.Generator().manual_seed(width))
    return ids * mask, mask


def alone(model, ids):
    """Next-token logits of one sequence without padding, by a whole forward without a cache, in float64."""
    with torch.no_grad():
        return model.double()(input_ids=ids.unsqueeze(0), use_cache=False).logits[0, -1]


class Noting(LogitsProcessor):
    """Behind all others that a caller gives: what the processors before it made."""

    def __init__(self):
        self.scores = []

    def __call__(self, input_ids, scores):
        self.scores.append(scores.clone())
        return scores


# The logits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
@pytest.mark.parametrize("lengths", [(4, 4, 4), (1, 5, 3)], ids=["no padding", "left padding"])
def test_each_decode_steps_scores_are_the_policys_logits_minus_mu_times_the_memorys(lengths, kind):
    policy, f_phi = tiny_trl.model(1).eval(), memory(kind=kind)
    ids, mask = prompts(*lengths)
    noting = Noting()
    torch.manual_seed(0)
    out = policy.generate(
        input_ids=ids,
        attention_mask=mask,
        logits_processor=LogitsProcessorList([MemoryLogits(f_phi, MU, mask), noting]),
        generation_config=GenerationConfig(
            do_sample=True, max_new_tokens=6, pad_token_id=0, eos_token_id=None, top_k=0
        ),
    )
    width = ids.shape[1]
    assert out.shape == (3, width + 6)
    for step, scores in enumerate(noting.scores):
        for row in range(3):
            sequence = out[row, width - lengths[row] : width + step]
            expected = alone(policy, sequence) - MU * alone(f_phi.model, sequence)
            assert (MU * alone(f_phi.model, sequence)).std() > 0.1  # the memory does say something
            assert scores[row].double() == pytest.approx(expected.numpy(), abs=2e-5)
        policy.float(), f_phi.model.float()


def test_responses_are_drawn_from_the_softmax_of_those_logits_over_the_temperature():
    policy, f_phi = tiny_trl.model(1).eval(), memory()
    ids, mask = prompts(3)
    num_draws = 20_000
    torch.manual_seed(0)
    out = policy.generate(
        input_ids=ids,
        attention_mask=mask,
        logits_processor=LogitsProcessorList([MemoryLogits(f_phi, MU, mask)]),
        generation_config=GenerationConfig(
            do_sample=True, max_new_tokens=1, pad_token_id=0, eos_token_id=None, top_k=0, temperature=TEMPERATURE,
            num_return_sequences=num_draws,
        ),
    )  # fmt: skip
    share = torch.bincount(out[:, -1], minlength=22).double() / num_draws
    calibrated = alone(policy, ids[0]) - MU * alone(f_phi.model, ids[0])
    expected = (calibrated / TEMPERATURE).softmax(-1)
    other_order = (alone(policy, ids[0]) / TEMPERATURE - MU * alone(f_phi.model, ids[0])).softmax(-1)
    assert (share - expected).abs().sum() < 0.04 < (share - other_order).abs().sum()


def test_a_processor_begins_again_for_other_rows_and_refuses_those_it_has_no_mask_for():
    f_phi = memory()
    ids, mask = prompts(2, 4)
    processor = MemoryLogits(f_phi, MU, mask)
    scores = torch.zeros(2, 22)
    first = processor(ids, scores)
    processor(torch.cat([ids, ids[:, :1]], 1), scores)
    assert torch.equal(processor(ids, scores), first)
    # Three returned sequences a prompt: each prompt's row thrice in a row, as generate repeats it.
    thrice = processor(ids.repeat_interleave(3, 0), torch.zeros(6, 22))
    assert torch.allclose(thrice, first.repeat_interleave(3, 0), atol=1e-6)
    with pytest.raises(ValueError, match="make one for each call of generate"):
        processor(ids[:1], scores[:1])
    with pytest.raises(ValueError, match="same vocabulary"):
        MemoryLogits(f_phi, MU, mask)(ids, torch.zeros(2, 23))


def test_without_a_mask_no_prompt_is_padded():
    ids, mask = prompts(3, 3)
    scores, f_phi = torch.zeros(2, 22), memory()
    with_ones, without = MemoryLogits(f_phi, MU, mask), MemoryLogits(f_phi, MU, None)
    without(ids[:, :2], scores)
    assert torch.allclose(without(ids, scores), with_ones(ids, scores), atol=1e-6)


def test_a_suppressed_token_stays_suppressed():
    ids, mask = prompts(3)
    scores = torch.full((1, 22), -torch.inf)
    scores[0, 5] = 1.0
    calibrated = MemoryLogits(memory(), MU, mask)(ids, scores)
    assert calibrated.isneginf().sum() == 21
    assert calibrated[0, 5].isfinite()


# The memory ---------------------------------------------------------------------------------------------------------


def rollouts(*lengths, width=5, seed=0):
    """Left-padded prompts of these lengths, then a response of ``width`` tokens, the last row's cut short."""
    ids, mask = prompts(*lengths)
    response = torch.randint(2, 22, (len(lengths), width), generator=torch.Generator().manual_seed(seed))
    sampled = torch.ones_like(response)
    sampled[-1, 2:] = 0
    return Rollouts(
        torch.cat([ids, response], 1), torch.cat([mask, sampled], 1), torch.cat([torch.zeros_like(ids), sampled], 1)
    )


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_what_it_learns_is_the_mean_cross_entropy_of_the_sampled_tokens_alone(kind):
    batch = rollouts(1, 5, 3)
    expected, count = 0.0, 0
    model = memory(kind=kind).model.double()
    for row in range(3):
        real = batch.attention_mask[row].bool()
        ids, sampled = batch.input_ids[row][real], batch.completion_mask[row][real]
        for t in range(1, len(ids)):
            if sampled[t]:
                logits = model(input_ids=ids[:t].unsqueeze(0), use_cache=False).logits[0, -1]
                expected = expected - logits.log_softmax(-1)[ids[t]]
                count += 1
    assert count == 12
    (expected / count).backward()

    learning, gradients = memory(kind=kind), {}
    learning.optimizer.register_step_pre_hook(
        lambda *_: gradients.update((n, p.grad.clone()) for n, p in learning.model.named_parameters())
    )
    assert learning.learn([batch]) == pytest.approx(expected.item() / count, rel=1e-5)
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradients[name].double(), parameter.grad, rtol=1e-3, atol=1e-6), name


@pytest.mark.parametrize("tokens_per_pass", [1, 25, 4096])
def test_an_update_does_not_depend_on_how_the_rollouts_are_cut(tokens_per_pass):
    batch = rollouts(1, 5, 3)
    whole, cut = memory(), memory(tokens_per_pass=tokens_per_pass)
    cut_in_two = [
        Rollouts(*(column[part] for column in (batch.input_ids, batch.attention_mask, batch.completion_mask)))
        for part in (slice(0, 1), slice(1, 3))
    ]
    for _ in range(3):
        assert whole.learn([batch]) == pytest.approx(cut.learn(cut_in_two), rel=1e-5)
    for a, b in zip(whole.model.parameters(), cut.model.parameters()):
        assert torch.allclose(a, b, atol=1e-4)


def test_it_comes_to_say_how_often_each_response_was_sampled():
    f_phi = smaller_memory(tiny_trl.model().config, learning_rate=1e-2)
    ids = torch.tensor([[2, 5]] * 8)
    ids[:6, 1], ids[6:, 1] = 7, 9  # after the word 2: six times 7, twice 9
    batch = Rollouts(ids, torch.ones_like(ids), torch.tensor([[0, 1]] * 8))
    losses = [f_phi.learn([batch]) for _ in range(60)]
    assert losses[0] == pytest.approx(torch.tensor(22.0).log().item(), rel=1e-6)  # uniform before
    p = alone(f_phi.model, torch.tensor([2])).softmax(-1)
    assert p[7] == pytest.approx(0.75, abs=0.02)
    assert p[9] == pytest.approx(0.25, abs=0.02)


def test_nothing_sampled_is_no_update():
    f_phi, batch = memory(), rollouts(2, 3)
    before = [p.clone() for p in f_phi.model.parameters()]
    nothing = Rollouts(batch.input_ids, batch.attention_mask, torch.zeros_like(batch.completion_mask))
    assert f_phi.learn([nothing]) is None
    assert f_phi.learn([]) is None
    assert all(torch.equal(a, b) for a, b in zip(before, f_phi.model.parameters()))
    assert f_phi.num_updates == 0


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(vocab_size=50, num_hidden_layers=4, hidden_size=512, num_attention_heads=8, head_dim=128),
        LlamaConfig(vocab_size=50, num_hidden_layers=3, hidden_size=96, num_attention_heads=4),
        GemmaConfig(vocab_size=50, num_hidden_layers=3, hidden_size=128, num_attention_heads=4, head_dim=32),
        GPT2Config(vocab_size=50, n_layer=3, n_embd=96, n_head=4),
        Qwen3MoeConfig(
            vocab_size=50, num_hidden_layers=3, hidden_size=64, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=32,
        ),
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_a_new_memory_is_smaller_says_nothing_yet_and_leaves_the_random_numbers_alone(config):
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    f_phi = smaller_memory(config, width=64)
    batch = rollouts(2, 4)
    ids, mask = batch.input_ids[:, :4], batch.attention_mask[:, :4]
    scores = torch.zeros(2, 50)
    assert torch.equal(MemoryLogits(f_phi, MU, mask)(ids, scores), scores)
    f_phi.learn([batch])
    processor = MemoryLogits(f_phi, MU, mask)
    processor(ids, scores)
    by_cache = processor(batch.input_ids[:, :5], scores)
    whole = f_phi.forward(batch.input_ids[:, :5], batch.attention_mask[:, :5]).logits[:, -1]
    assert whole.std() > 0
    assert torch.allclose(by_cache, -MU * whole, atol=1e-5)
    assert torch.equal(torch.rand(4), expected)
    assert f_phi.vocab_size == 50
    assert f_phi.model.config.num_hidden_layers == 2
    assert config.num_hidden_layers > 2
    again = smaller_memory(config, width=64)
    assert all(p.dtype == torch.float32 for p in again.model.parameters())


def test_an_architecture_that_cannot_be_made_smaller_is_refused_with_the_way_out():
    class Odd(Qwen3Config):
        def get_text_config(self):
            raise AttributeError("hidden_size")

    with pytest.raises(ValueError, match="give a memory of your own"):
        smaller_memory(Odd())


def test_it_goes_on_where_its_state_was_taken():
    a, b = memory(), memory(seed=4)
    batches = [rollouts(1, 4, seed=i) for i in range(4)]
    for batch in batches[:2]:
        a.learn([batch])
    b.load_state_dict(a.state_dict())
    assert [a.learn([x]) for x in batches[2:]] == [b.learn([x]) for x in batches[2:]]
    assert b.num_updates == 4
    assert all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters()))


# Several ranks ------------------------------------------------------------------------------------------------------

TWO_RANKS = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[2])
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), sys.argv[1]
from trainer_adapters.test_dlc import AtEachStep, DlcSampling, Rollouts, memory, rollouts, tiny_trl
whole = rollouts(1, 5, 3)
rows = slice(0, 1) if rank == 0 else slice(1, 3)
mine = Rollouts(*(c[rows] for c in (whole.input_ids, whole.attention_mask, whole.completion_mask)))
f_phi = memory(seed=3 + rank)
f_phi.copy_from_first_rank()
losses = [f_phi.learn([mine]) for _ in range(3)]
losses.append(f_phi.learn([mine] if rank else []))  # one rank has mu 0
before = [p.clone() for p in f_phi.model.parameters()]
broken = Rollouts(mine.input_ids + 10_000 * (1 - rank), mine.attention_mask, mine.completion_mask)
try:
    f_phi.learn([broken])
    failed = ""
except RuntimeError as error:
    failed = str(error)
unmoved = all(torch.equal(a, b) for a, b in zip(before, f_phi.model.parameters()))

trainer = tiny_trl.trainer(folder + "/out", per_device_train_batch_size=8, max_steps=4)
dlc = DlcSampling(trainer, memory=memory(seed=3 + rank)).install()
def act(step):
    if step == 2 and rank == 0:
        dlc.mu = 0.0  # on one rank alone: nobody may wait for the other
trainer.add_callback(AtEachStep(act))
trainer.train()
trained = [dlc.failure, dlc.memory.num_updates, list(dlc.memory.model.parameters())]

trainer = tiny_trl.trainer(folder + "/out", per_device_train_batch_size=8, max_steps=4)
dlc = DlcSampling(trainer).install()
if rank == 0:
    def broken(*args, **kwargs):
        raise RuntimeError("asked in vain")
    dlc.memory.forward = broken
trainer.train()
trained += [dlc.failure, trainer.state.global_step]
torch.save([losses, list(f_phi.model.parameters()), failed, unmoved, trained], f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_learn_as_one_process_with_all_rollouts_and_fail_together(tmp_path):
    """In one launch, which is what costs: the memory alone, then a trainer of TRL under DDP."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", TWO_RANKS, str(tmp_path), str(Path(__file__).parents[1])],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in running:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors[-2000:]
    zero, one = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    alone_memory, whole = memory(), rollouts(1, 5, 3)
    expected = [alone_memory.learn([whole]) for _ in range(3)]
    last = Rollouts(*(c[1:] for c in (whole.input_ids, whole.attention_mask, whole.completion_mask)))
    expected.append(alone_memory.learn([last]))
    assert zero[0] == one[0] == pytest.approx(expected, rel=1e-4)
    assert is_same(zero[1], one[1])
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(zero[1], alone_memory.model.parameters()))
    assert "could not learn on 1 rank" in zero[2]
    assert "could not learn on 1 rank" in one[2]
    assert zero[3]
    assert one[3]
    for failure, num_updates, _, _, num_steps in (zero[4], one[4]):
        assert failure is None
        assert num_updates == num_steps == 4
    assert zero[4][3] == "RuntimeError: asked in vain"
    assert "could not learn on 1 rank" in one[4][3]
    assert is_same(zero[4][2], one[4][2])
    assert not is_same(zero[4][2], list(memory().model.parameters()))


# In TRL -------------------------------------------------------------------------------------------------------------


class AtEachStep(TrainerCallback):
    def __init__(self, act):
        self.act = act

    def on_step_end(self, args, state, control, **kwargs):
        self.act(state.global_step)


class Trace:
    """Losses and responses of a run."""

    def __init__(self, trainer):
        self.losses, self.responses = [], []
        original = trainer._compute_loss

        def compute_loss(model, inputs):
            loss = original(model, inputs)
            self.losses.append(loss.detach().clone())
            self.responses.append(inputs["completion_ids"].clone())
            return loss

        trainer._compute_loss = compute_loss


def is_same(a, b):
    return len(a) == len(b) and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b))


def weights_of(dlc):
    return [p.detach().clone() for p in dlc.memory.model.parameters()]


def weights(trainer):
    return [p.detach().clone() for p in trainer.model.parameters()]


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_with_mu_0_training_is_the_same_to_the_bit_and_with_mu_it_is_not(tmp_path, kind):
    traces, ends, asked = {}, {}, {}
    for mu in (None, 0.0, 0.5):
        trainer = tiny_trl.trainer(tmp_path, kind, learning_rate=0.01)
        start = weights(trainer)
        traces[mu] = Trace(trainer)
        if mu is not None:
            dlc = DlcSampling(trainer, mu=mu).install()  # its initial weights must not move the random numbers
            with torch.no_grad():
                dlc.memory.model.get_output_embeddings().weight[5] = 1.0  # it says something from the start
            asked[mu] = []
            dlc.memory.model.register_forward_hook(lambda *_, mu=mu: asked[mu].append(1))
        trainer.train()
        ends[mu] = weights(trainer)

    assert asked[0.0] == []
    assert len(asked[0.5]) > 0
    assert len(traces[None].losses) == 3
    assert is_same(traces[None].losses, traces[0.0].losses)
    assert is_same(traces[None].responses, traces[0.0].responses)
    assert is_same(ends[None], ends[0.0])
    assert not is_same(start, ends[None])
    assert not is_same(traces[None].responses, traces[0.5].responses)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
        {"num_iterations": 2, "gradient_checkpointing": True},
    ],
    ids=["one batch", "accumulated", "two updates a rollout"],
)
def test_the_memory_learns_the_rollouts_of_every_step(tmp_path, settings):
    policy = tiny_trl.model()
    with torch.no_grad():
        policy.get_output_embeddings().weight.mul_(30)  # sure of itself: something to remember
    trainer = tiny_trl.trainer(tmp_path, policy=policy, max_steps=20, learning_rate=1e-4, **settings)
    dlc = DlcSampling(trainer, memory=smaller_memory(trainer.model.config, learning_rate=1e-2)).install()
    trace, learned, losses = Trace(trainer), [], []
    learn = dlc.memory.learn

    def noting(batches, *args):
        learned.extend(batches)
        return learn(batches, *args)

    dlc.memory.learn = noting
    trainer.add_callback(AtEachStep(lambda _: losses.append(dlc.memory_loss)))
    trainer.train()

    assert dlc.failure is None
    assert dlc.memory.num_updates == len(losses) == 20
    assert len(learned) == len(trace.responses) > 0
    for batch, response in zip(learned, trace.responses):
        assert torch.equal(batch.input_ids[:, -response.shape[1] :], response)
        assert batch.completion_mask.sum() > 0
    assert losses[0] == pytest.approx(torch.tensor(22.0).log().item(), rel=1e-5)
    assert sum(losses[-5:]) < sum(losses[:5]) - 1


def test_a_response_that_the_memory_knows_is_sampled_less(tmp_path):
    """A memory that has seen only the word 'a' takes it from the rollouts; a policy that likes 'a' would give it."""
    shares = {}
    for mu in (0.0, 0.5):
        policy = tiny_trl.model()
        trainer = tiny_trl.trainer(tmp_path, policy=policy, max_steps=1, learning_rate=0.0)
        trace = Trace(trainer)
        f_phi = smaller_memory(policy.config, learning_rate=1e-2)
        ids = torch.full((16, 12), 2)
        for _ in range(30):
            f_phi.learn([Rollouts(ids, torch.ones_like(ids), torch.ones_like(ids))])
        DlcSampling(trainer, mu=mu, memory=f_phi).install()
        with torch.no_grad():
            policy.get_output_embeddings().weight.mul_(0)  # uniform over 22 words
        trainer.train()
        shares[mu] = (trace.responses[0] == 2).double().mean().item()
    assert shares[0.0] == pytest.approx(1 / 22, abs=0.06)
    assert shares[0.0] > 0
    assert shares[0.5] == 0


def test_mu_can_be_set_while_training_and_a_memory_removed_leaves_no_trace(tmp_path):
    trainer = tiny_trl.trainer(tmp_path, max_steps=4)
    before = {name: getattr(trainer, name) for name in ("_generate_single_turn", "_prepare_inputs")}
    callbacks = list(trainer.callback_handler.callbacks)
    dlc = DlcSampling(trainer, mu=0.0).install()
    assert dlc.install() is dlc
    updates = []

    def act(step):
        updates.append(dlc.memory.num_updates)
        if step == 1:
            dlc.mu = 0.5
        if step == 3:
            dlc.remove()

    trainer.add_callback(AtEachStep(act))
    trainer.train()

    assert updates == [0, 1, 2, 2]
    assert {name: getattr(trainer, name) for name in before} == before
    assert not {"_generate_single_turn", "_prepare_inputs"} & trainer.__dict__.keys()
    assert "generate" not in trainer.model.__dict__
    assert trainer.callback_handler.callbacks[: len(callbacks)] == callbacks
    assert dlc not in trainer.callback_handler.callbacks
    dlc.remove()


def test_evaluation_is_the_policys_own(tmp_path):
    trainer = tiny_trl.trainer(
        tmp_path, max_steps=1, eval_dataset=tiny_trl.dataset().select(range(4)), per_device_eval_batch_size=4
    )
    dlc = DlcSampling(trainer).install()
    asked = []
    dlc.memory.model.register_forward_hook(lambda *_: asked.append(1))
    trainer.evaluate()
    assert asked == []
    assert dlc._rollouts == []


def test_what_fails_in_the_memory_does_not_stop_training(tmp_path, caplog):
    trainer = tiny_trl.trainer(tmp_path)
    dlc = DlcSampling(trainer).install()

    def broken(*args, **kwargs):
        raise RuntimeError("out of memory, say")

    dlc.memory.forward = broken
    trainer.add_callback(AtEachStep(lambda _: setattr(dlc, "mu", 0.5)))  # a lever that does not know
    trainer.train()
    assert trainer.state.global_step == 3
    assert dlc.failure == "RuntimeError: out of memory, say"
    assert dlc.mu == 0
    assert len([r for r in caplog.records if "switched itself off" in r.message]) == 1


def test_a_resumed_run_goes_on_with_the_memory_of_its_checkpoint(tmp_path, caplog):
    first = tiny_trl.trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    kept = DlcSampling(first).install()
    first.train()

    class Late(TrainerCallback):  # as a lever does that finds DLC switched on
        def on_step_begin(self, args, state, control, **kwargs):
            self.dlc = DlcSampling(second).install()
            self.found = weights_of(self.dlc)

    second = tiny_trl.trainer(tmp_path, max_steps=3)
    late = Late()
    second.add_callback(late)
    second.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-2")
    assert is_same(weights_of(kept), late.found)
    assert (kept.memory.num_updates, late.dlc.memory.num_updates) == (2, 3)

    early = tiny_trl.trainer(tmp_path, max_steps=3)
    dlc = DlcSampling(early).install()
    early.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-2")
    assert dlc.memory.num_updates == 3

    (tmp_path / "checkpoint-2" / "entrostat_dlc_memory.pt").write_bytes(b"torn")
    third = tiny_trl.trainer(tmp_path, max_steps=3)
    dlc = DlcSampling(third).install()
    third.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-2")
    assert dlc.memory.num_updates == 1
    assert dlc.failure is None
    assert "begins without what was sampled" in caplog.text


def test_it_goes_with_a_probe_in_any_order_of_coming_and_going(tmp_path):
    ends = {}
    for is_watched in (False, True):
        trainer = tiny_trl.trainer(tmp_path / "out", max_steps=2)
        dlc = DlcSampling(trainer).install()
        if is_watched:
            handle = entrostat.attach(trainer, url="http://127.0.0.1:9", directory=tmp_path / "spool")
        trainer.train()
        ends[is_watched] = weights(trainer)
        dlc.remove()
        assert dlc.failure is None
    assert is_same(ends[False], ends[True])
    handle.detach()
    assert not {"_generate_single_turn", "_prepare_inputs", "_compute_loss"} & trainer.__dict__.keys()


def test_with_peft_the_memory_is_made_of_the_base_and_acts(tmp_path):
    peft = pytest.importorskip("peft")
    policy = peft.get_peft_model(tiny_trl.model(), peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    trainer = tiny_trl.trainer(tmp_path, policy=policy, max_steps=2)
    dlc = DlcSampling(trainer).install()
    trainer.train()
    assert dlc.failure is None
    assert dlc.memory.num_updates == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: setattr(t, "use_vllm", True), "use_vllm=False"),
        (lambda t: setattr(t, "use_transformers_continuous_batching", True), "continuous batching"),
        (lambda t: setattr(t, "rollout_func", print), "rollout_func"),
        (lambda t: setattr(t, "_is_vlm", True), "images"),
        (lambda t: setattr(t.generation_config, "num_beams", 2), "num_beams=1"),
        (lambda t: setattr(t.generation_config, "prompt_lookup_num_tokens", 2), "prompt lookup"),
        (lambda t: setattr(t, "_generate_single_turn", lambda prompts: None), "_generate_single_turn takes"),
    ],
)
def test_a_trainer_it_cannot_sample_for_is_refused_with_the_reason(tmp_path, change, reason):
    trainer = tiny_trl.trainer(tmp_path)
    change(trainer)
    with pytest.raises(AttachError, match=reason):
        DlcSampling(trainer)


def test_mu_and_the_vocabulary_are_checked(tmp_path):
    trainer = tiny_trl.trainer(tmp_path)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        DlcSampling(trainer, mu=-0.1)
    with pytest.raises(ValueError, match="21 tokens and the policy 22"):
        DlcSampling(trainer, memory=MemoryLM(tiny_trl.model(vocab_size=21)))
    dlc = DlcSampling(trainer)
    with pytest.raises(ValidationError):
        dlc.mu = float("nan")
    assert dlc.mu == DlcParams().mu == 0.5
    assert METHOD.name == "dlc"
    assert METHOD.make is None
