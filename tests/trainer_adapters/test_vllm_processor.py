"""One processor, both of vLLM's interfaces, played by stand-ins that hold to what vLLM's own files say of them.

Real engines: tests/peers/vllm (``make test-vllm``).
"""

from enum import Enum, auto
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import tiny_trl

from entrostat.trainer_adapters.sampling.memory_lm import MemoryLM
from entrostat.trainer_adapters.vllm.dlc import DlcRollouts, DlcServed, load_memory, next_logits, save_memory
from entrostat.trainer_adapters.vllm.live import install, remove
from entrostat.trainer_adapters.vllm.processor import Processor
from entrostat.trainer_adapters.vllm.rollout_probe import RolloutProbe
from entrostat.wire.errors import AttachError

V = 7
CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(get_vocab_size=lambda: V, model="tiny", dtype="float32"),
    parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_rank=0),
)


class Direction(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


def params(temperature=1.0, **extra_args):
    return SimpleNamespace(temperature=temperature, extra_args=extra_args or None)


def update(removed=(), added=(), moved=()):
    return SimpleNamespace(removed=list(removed), added=list(added), moved=list(moved))


def logits(*seeds):
    return torch.stack([torch.randn(V, generator=torch.Generator().manual_seed(s)) for s in seeds]) * 3


def outputs(*requests):
    """(prompt, response) each, as ``LLM.generate`` returns them, without log-probs."""
    return [
        SimpleNamespace(prompt_token_ids=p, outputs=[SimpleNamespace(token_ids=r, logprobs=None)]) for p, r in requests
    ]


def entropy(row, temperature=1.0):
    logp = (row.double() / temperature).log_softmax(-1)
    return -(logp.exp() * logp).sum().item()


class Runner1:
    """Runner V1 as far as a processor sees it: lists that grow, rows that come, go and move."""

    def __init__(self, processor):
        self.processor = processor(CONFIG, torch.device("cpu"), False)

    def step(self, step_logits, lists, drawn, change=None):
        self.processor.update_state(change)
        found = self.processor.apply(step_logits)
        for ids, token in zip(lists, drawn, strict=True):
            ids.append(token)
        return found


class Runner2:
    """Runner V2: slots, and token histories on the device. No tensor of the host tells what was drawn."""

    def __init__(self, processor, slots=4, longest=16):
        self.states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=torch.zeros(slots, longest, dtype=torch.int32)),
            prompt_len=SimpleNamespace(np=np.zeros(slots, dtype=np.int32)),
            prefill_len=SimpleNamespace(np=np.zeros(slots, dtype=np.int32)),
        )
        self.total = np.zeros(slots, dtype=np.int64)
        self.processor = processor(CONFIG, self.states)

    def add(self, slot, prompt, sampling_params):
        self.states.all_token_ids.gpu[slot, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
        self.states.prompt_len.np[slot] = self.states.prefill_len.np[slot] = len(prompt)
        self.total[slot] = len(prompt)
        assert self.processor.add_request(slot, sampling_params) is True
        self.processor.apply_staged_writes() if hasattr(self.processor, "apply_staged_writes") else None

    def step(self, step_logits, slots, drawn, visible=None):
        seen = [int(self.total[s]) for s in slots] if visible is None else visible
        ids = self.states.all_token_ids.gpu
        context = SimpleNamespace(
            idx_mapping_np=np.array(slots), seq_lens_upper_bound_np=np.array(seen),
            input_ids=torch.tensor([int(ids[s, n - 1]) for s, n in zip(slots, seen, strict=True)]),
        )  # fmt: skip
        found = self.processor.apply(step_logits, context)
        for slot, token in zip(slots, drawn, strict=True):
            if token is not None:
                ids[slot, self.total[slot]] = token
                self.total[slot] += 1
        return found


# The probe --------------------------------------------------------------------------------------------------------


def test_v1_rows_are_followed_through_coming_going_and_moving():
    probe = RolloutProbe(n=2)
    runner = Runner1(probe.processor)
    a, b, c = [], [], []
    ab = update(added=[(0, params(), [1, 2], a), (1, params(0.5), [3], b)])
    one = logits(0, 1)
    assert runner.step(one, [a, b], [4, 5], ab) is one  # untouched, the very tensor
    two = logits(2, 3)
    runner.step(two, [b, a], [0, 6], update(moved=[(0, 1, Direction.SWAP)]))
    three = logits(4)
    # b is done: a moves to row 0; and c comes in its place
    four = logits(5, 6)
    runner.step(three, [a], [1], update(removed=[0], moved=[(1, 0, Direction.UNIDIRECTIONAL)]))
    runner.step(four, [a, c], [2, 3], update(added=[(1, params(0.0), [3], c)]))

    seen = probe.join(outputs(([1, 2], a), ([3], b), ([3], c)))

    assert (a, b, c) == ([4, 6, 1, 2], [5, 0], [3])
    expected = [
        [entropy(one[0]), entropy(two[1]), entropy(three[0]), entropy(four[0])],
        [entropy(one[1], 0.5), entropy(two[0], 0.5)],
        [entropy(four[1])],  # greedy: at temperature 1
    ]
    for row, values in enumerate(expected):
        assert seen.entropy[row, : len(values)].tolist() == pytest.approx(values, abs=1e-5)
        assert seen.entropy[row, len(values) :].isnan().all()
    assert seen.top_logps[1, 0, 0] == pytest.approx((one[1] / 0.5).log_softmax(-1).max().item(), abs=1e-5)
    assert seen.top_ids[2, 0].tolist() == four[1].topk(2).indices.tolist()
    assert seen.num_missing == 0
    assert probe.failure is None


def test_a_prompt_in_pieces_shows_its_first_position_again_and_the_last_counts():
    probe = RolloutProbe(n=1)
    runner = Runner1(probe.processor)
    ids = []
    runner.step(logits(0), [], [], update(added=[(0, params(), [1, 2, 3], ids)]))  # a piece: nothing is drawn
    last = logits(1)
    runner.step(last, [ids], [5])

    seen = probe.join(outputs(([1, 2, 3], ids)))

    assert seen.entropy.tolist() == [[pytest.approx(entropy(last[0]), abs=1e-5)]]


def test_v2_slots_are_recycled_and_tokens_come_from_the_device():
    probe = RolloutProbe(n=1)
    runner = Runner2(probe.processor)
    runner.add(2, [1, 2], params())
    runner.add(0, [3], params(2.0))
    steps = [logits(0, 1), logits(2, 3), logits(4), logits(5)]
    assert runner.step(steps[0], [2, 0], [4, 5]) is steps[0]
    runner.step(steps[1], [0, 2], [6, 4])
    runner.add(0, [1, 2], params())  # the second request is done, a third takes its slot
    runner.step(steps[2], [0], [None], visible=[1])  # a piece of its prompt
    runner.step(steps[3], [0], [6])

    seen = probe.join(outputs(([1, 2], [4, 4]), ([3], [5, 6]), ([1, 2], [6])))

    assert seen.entropy[0].tolist() == pytest.approx([entropy(steps[0][0]), entropy(steps[1][1])], abs=1e-5)
    assert seen.entropy[1].tolist() == pytest.approx([entropy(steps[0][1], 2), entropy(steps[1][0], 2)], abs=1e-5)
    assert seen.num_missing == 0
    assert probe.failure is None


def test_a_one_token_response_is_any_of_its_prompts():
    """Two requests with one prompt drew from one distribution at their first token: either record serves."""
    probe = RolloutProbe(n=1)
    runner = Runner1(probe.processor)
    a, b = [], []
    same = logits(0, 0)
    runner.step(same, [a, b], [4, 5], update(added=[(0, params(), [1], a), (1, params(), [1], b)]))

    seen = probe.join(outputs(([1], a), ([1], b)))

    assert seen.entropy[:, 0].tolist() == pytest.approx([entropy(same[0])] * 2, abs=1e-5)


def test_a_request_may_opt_out_and_what_is_not_measured_is_unknown():
    probe = RolloutProbe(n=1)
    runner = Runner1(probe.processor)
    a, b = [], []
    with_b = update(added=[(0, params(entrostat_rollout=0), [1], a), (1, params(), [2], b)])
    runner.step(logits(0, 1), [a, b], [4, 5], with_b)

    seen = probe.join(outputs(([1], a), ([2], b)))

    assert seen.entropy[0].isnan().all()
    assert not seen.entropy[1].isnan().any()
    assert seen.num_missing == 1
    probe.processor.validate_params(params(entrostat_rollout=1))
    with pytest.raises(ValueError, match="entrostat_rollout='no'"):
        probe.processor.validate_params(params(entrostat_rollout="no"))


def test_what_nobody_takes_is_dropped_and_counted():
    probe = RolloutProbe(n=1, capacity=1)
    runner = Runner1(probe.processor)
    ids = []
    runner.step(logits(0), [ids], [4], update(added=[(0, params(), [1], ids)]))
    runner.step(logits(1), [ids], [5])

    assert probe.num_dropped == 1
    assert probe.join(outputs(([1], ids))).num_missing == 2  # its last token's row is not there: none is sure


def test_a_failure_is_ours_and_the_logits_pass():
    class Broken(Processor):
        def process(self, logits, batch):
            raise RuntimeError("no")

    runner = Runner1(Broken)
    ids, given = [], logits(0)

    assert runner.step(given, [ids], [1], update(added=[(0, params(), [1], ids)])) is given
    assert runner.processor.failure == "RuntimeError: no"
    assert runner.step(given, [ids], [1]) is given


def test_speculative_decoding_under_v2_is_left_alone():
    probe = RolloutProbe(n=1)
    runner = Runner2(probe.processor)
    runner.add(0, [1], params())
    given = logits(0, 1)  # two rows for one request
    context = SimpleNamespace(idx_mapping_np=np.array([0]))

    assert runner.processor.apply(given, context) is given
    assert "speculative decoding" in probe.failure


# DLC --------------------------------------------------------------------------------------------------------------


def memory(seed=1):
    return MemoryLM(tiny_trl.model(seed, vocab_size=V, initializer_range=0.5))


def remembered(memory, ids):
    with torch.no_grad():
        return memory.model(torch.tensor([ids])).logits[0, -1]


@pytest.mark.parametrize("runner_class", [Runner1, Runner2])
def test_dlc_subtracts_the_memorys_logits_behind_each_requests_own_tokens(runner_class):
    dlc = DlcRollouts(memory(), mu=0.5)
    runner = runner_class(dlc.processor)
    a, b = [], []
    first, second = logits(0, 1), logits(2, 3)
    if runner_class is Runner1:
        change = update(added=[(0, params(), [1, 2, 3], a), (1, params(entrostat_mu=0), [4], b)])
        runner.step(first.clone(), [a, b], [5, 6], change)
        found = runner.step(second.clone(), [a, b], [0, 0])
    else:
        runner.add(3, [1, 2, 3], params())
        runner.add(1, [4], params(entrostat_mu=0))
        runner.step(first.clone(), [3, 1], [5, 6])
        found = runner.step(second.clone(), [3, 1], [0, 0])

    torch.testing.assert_close(found[0], second[0] - 0.5 * remembered(dlc.memory, [1, 2, 3, 5]), atol=1e-5, rtol=1e-5)
    assert torch.equal(found[1], second[1])
    assert dlc.failure is None


def test_mu_0_is_off_and_may_be_changed_at_any_time():
    dlc = DlcRollouts(memory(), mu=0.0)
    runner = Runner1(dlc.processor)
    ids, given = [], logits(0)
    assert torch.equal(runner.step(given.clone(), [ids], [1], update(added=[(0, params(), [1], ids)])), given)

    dlc.mu = 1.0
    expected = given - remembered(dlc.memory, [1, 1])
    torch.testing.assert_close(runner.step(given.clone(), [ids], [1]), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="mu"):
        dlc.mu = 3.0
    with pytest.raises(ValueError, match="mu"):
        dlc.processor.validate_params(params(entrostat_mu=-1))


def test_forbidden_tokens_stay_forbidden_and_left_padding_moves_nothing():
    dlc = DlcRollouts(memory(), mu=2.0)
    runner = Runner1(dlc.processor)
    a, b = [], []
    given = logits(0, 1)
    given[0, 3] = -torch.inf
    change = update(added=[(0, params(), [1, 2, 3, 4, 5], a), (1, params(), [6], b)])

    found = runner.step(given.clone(), [a, b], [1, 1], change)

    assert found[0, 3] == -torch.inf
    torch.testing.assert_close(found[1], given[1] - 2 * remembered(dlc.memory, [6]), atol=1e-5, rtol=1e-5)


def test_a_memory_of_other_tokens_is_refused_when_the_engine_starts():
    other = DlcRollouts(MemoryLM(tiny_trl.model(vocab_size=V + 1)))

    with pytest.raises(AttachError, match="8 tokens and the policy 7"):
        Runner1(other.processor)


def test_tokens_that_the_engine_does_not_know_yet_switch_dlc_off():
    dlc = DlcRollouts(memory(), mu=1.0)
    runner = Runner1(dlc.processor)
    given = logits(0)

    assert torch.equal(runner.step(given.clone(), [], [], update(added=[(0, params(), [1], [-1])])), given)
    assert "async_scheduling=False" in dlc.failure


def test_a_served_memory_is_taken_up_when_its_file_changes(tmp_path, monkeypatch):
    path = tmp_path / "memory.pt"
    monkeypatch.setenv("ENTROSTAT_DLC_MEMORY", str(path))
    monkeypatch.setattr("entrostat.trainer_adapters.vllm.dlc._LOOK_EVERY_S", 0.0)
    runner = Runner1(DlcServed)
    ids, given = [], logits(0)
    assert torch.equal(runner.step(given.clone(), [], [], update(added=[(0, params(), [1, 2], ids)])), given)

    for seed, mu in ((1, 0.5), (2, 1.5)):
        save_memory(path, memory(seed), mu)
        expected = given - mu * remembered(memory(seed), [1, 2])
        torch.testing.assert_close(runner.step(given.clone(), [], []), expected, atol=1e-5, rtol=1e-5)

    path.write_bytes(b"no memory")
    torch.testing.assert_close(runner.step(given.clone(), [], []), expected, atol=1e-5, rtol=1e-5)
    assert runner.processor.failure is None
    save_memory(path, memory(3), 0.0)
    assert torch.equal(runner.step(given.clone(), [], []), given)


def test_a_saved_memory_is_the_same_memory_and_loading_draws_no_random_numbers(tmp_path):
    saved = memory()
    save_memory(tmp_path / "m", saved, 0.3)
    before = torch.random.get_rng_state()

    loaded, mu = load_memory(tmp_path / "m")

    assert torch.equal(torch.random.get_rng_state(), before)
    assert mu == 0.3
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(next_logits(loaded, ids, torch.ones_like(ids)), next_logits(saved, ids, torch.ones_like(ids)))
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_without_a_file_named_the_engine_does_not_start(monkeypatch):
    monkeypatch.delenv("ENTROSTAT_DLC_MEMORY", raising=False)
    with pytest.raises(AttachError, match="set ENTROSTAT_DLC_MEMORY"):
        Runner1(DlcServed)


# Into an engine that is there -------------------------------------------------------------------------------------


def engine(is_busy=False):
    batch = SimpleNamespace(
        logitsprocs=SimpleNamespace(non_argmax_invariant=[]), logitsprocs_need_output_token_ids=False
    )
    runner = SimpleNamespace(vllm_config=CONFIG, device=torch.device("cpu"), input_batch=batch)
    executor = SimpleNamespace(driver_worker=SimpleNamespace(worker=SimpleNamespace(model_runner=runner)))
    return SimpleNamespace(
        llm_engine=SimpleNamespace(model_executor=executor, has_unfinished_requests=lambda: is_busy)
    ), batch  # fmt: skip


def test_a_processor_goes_into_an_idle_engine_and_out_again():
    llm, batch = engine()

    made = install(llm, RolloutProbe().processor)
    assert batch.logitsprocs.non_argmax_invariant == [made]
    assert batch.logitsprocs_need_output_token_ids

    remove(llm, made)
    remove(llm, made)
    assert batch.logitsprocs.non_argmax_invariant == []


def test_a_busy_engine_and_one_in_another_process_are_refused():
    with pytest.raises(AttachError, match="between two generations"):
        install(engine(is_busy=True)[0], RolloutProbe().processor)
    with pytest.raises(AttachError, match=r"SimpleNamespace has no model_executor.*VLLM_ENABLE_V1_MULTIPROCESSING=0"):
        install(SimpleNamespace(llm_engine=SimpleNamespace()), RolloutProbe().processor)
