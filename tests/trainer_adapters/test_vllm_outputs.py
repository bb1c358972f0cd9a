"""vLLM's outputs are read by token id and by rank, never by place: on stand-ins of the shapes vLLM and TRL give."""

import math
from types import SimpleNamespace

import pytest
import torch

from entrostat.trainer_adapters.attach import warn_of_logprobs
from entrostat.trainer_adapters.vllm.outputs import rollout_rows
from entrostat.trainer_adapters.vllm.trl_rollouts import check_logprobs, name_steps, rollout_logprobs
from entrostat.wire.errors import AttachError

# One response, tokens 7, 3, 5. At its first position 7 was sampled, which is the third most likely.
PLACES = [
    [(7, -2.0, 3), (1, -0.5, 1), (2, -1.5, 2)],
    [(3, -0.1, 1), (8, -3.0, 2)],
    [(5, -1.0, 2), (6, -0.7, 1)],
]


def as_dicts(places, order=lambda place: place):
    return [{i: SimpleNamespace(logprob=lp, rank=r, decoded_token=None) for i, lp, r in order(p)} for p in places]


def as_flat(places):
    """Like vLLM's FlatLogprobs: one list for all positions; the sampled token stands twice where it is in the top."""
    ends = [sum(len(p) for p in places[: i + 1]) for i in range(len(places))]
    every = [entry for place in places for entry in place]
    return SimpleNamespace(
        start_indices=[0, *ends[:-1]], end_indices=ends, token_ids=[e[0] for e in every],
        logprobs=[e[1] for e in every], ranks=[e[2] for e in every],
    )  # fmt: skip


def output(*responses, prompt=(4, 4)):
    made = [SimpleNamespace(token_ids=list(ids), logprobs=logprobs) for ids, logprobs in responses]
    return SimpleNamespace(prompt_token_ids=list(prompt), outputs=made)


@pytest.mark.parametrize("seen", [as_dicts(PLACES), as_flat(PLACES)], ids=["dictionaries", "flat"])
def test_the_sampled_token_is_found_by_its_id_and_the_candidates_by_their_rank(seen):
    rows = rollout_rows([output(([7, 3, 5], seen))], n=2)

    assert rows.logp[0].tolist() == pytest.approx([-2.0, -0.1, -1.0])
    assert rows.top_ids[0].tolist() == [[1, 2], [3, 8], [6, 5]]
    assert rows.top_logps[0] == pytest.approx(torch.tensor([[-0.5, -1.5], [-0.1, -3.0], [-0.7, -1.0]]))


def test_sorted_by_rank_the_first_is_not_the_sampled_one_and_is_not_taken():
    by_rank = as_dicts(PLACES, order=lambda place: sorted(place, key=lambda entry: entry[2]))

    rows = rollout_rows([output(([7, 3, 5], by_rank))], n=1)

    assert next(iter(by_rank[0].values())).logprob == -0.5  # the trap: the argmax's
    assert rows.logp[0].tolist() == pytest.approx([-2.0, -0.1, -1.0])


def test_a_tie_in_a_flat_list_keeps_both_candidates():
    tied = [[(9, -0.7, 2), (9, -0.7, 1), (4, -0.7, 2)]]  # sampled: 2 tokens are at least as likely; then the top two

    rows = rollout_rows([output(([9], as_flat(tied)))], n=2)

    assert rows.top_ids[0, 0].tolist() == [9, 4]
    assert rows.logp[0, 0] == pytest.approx(-0.7)


def test_responses_of_different_length_and_without_log_probs_are_padded_and_unknown():
    rows = rollout_rows([output(([7, 3, 5], as_dicts(PLACES)), ([2], None)), output(([1, 1], None), prompt=(6,))], n=1)

    assert rows.prompt.tolist() == [0, 0, 1]
    assert rows.prompt_ids == [[4, 4], [6]]
    assert rows.token_ids.tolist() == [[7, 3, 5], [2, -1, -1], [1, 1, -1]]
    assert rows.mask.sum(1).tolist() == [3, 1, 2]
    assert rows.logp[1:].isnan().all()
    assert (rows.top_ids[1:] == -1).all()
    assert rollout_rows([]).token_ids.shape == (0, 0)


def test_log_probs_that_belong_to_other_tokens_are_refused():
    with pytest.raises(ValueError, match="has 2 tokens and log-probs of 3 positions"):
        rollout_rows([output(([7, 3], as_dicts(PLACES)))])


# TRL --------------------------------------------------------------------------------------------------------------


class Generation:
    """TRL's VLLMGeneration as far as ``rollout_logprobs`` knows it; sorted by log-prob, like theirs."""

    def __init__(self):
        self.logprobs = 0
        self.generation_kwargs = {}
        self.mode, self.asked = "colocate", []

    def generate(self, prompts, images, num_generations, profiler=None):
        self.asked.append(self.generation_kwargs)
        keep = self.logprobs or 1
        places = [sorted(p, key=lambda entry: -entry[1]) if self.logprobs else p[:1] for p in PLACES]
        logps = [[[e[1] for e in p][: keep + 1] for p in places]]
        ids = [[[e[0] for e in p][: keep + 1] for p in places]]
        return [[4, 4]], [[7, 3, 5]], logps, ids


def trl_reads(generation):
    """What TRL 1.16 does with it (grpo_trainer.py, ``_generate_single_turn``)."""
    _, _, logps, _ = generation.generate(prompts=[[4, 4]], images=None, num_generations=1, profiler=None)
    return [[place[0] for place in row] for row in logps]


def test_trl_reads_the_sampled_tokens_log_prob_whatever_is_asked_for():
    trainer = SimpleNamespace(vllm_generation=Generation())
    right = trl_reads(trainer.vllm_generation)
    trainer.vllm_generation.logprobs = 3
    assert trl_reads(trainer.vllm_generation) == [[-0.5, -0.1, -0.7]] != right  # the trap
    trainer.vllm_generation.logprobs = 0

    heard = []
    handle = rollout_logprobs(trainer, 3, heard.append)
    assert trl_reads(trainer.vllm_generation) == right == [[-2.0, -0.1, -1.0]]
    assert handle.last is heard[0]
    assert handle.last.ids == [[[1, 2, 7], [3, 8], [6, 5]]]
    check_logprobs(trainer)

    handle.remove()
    assert trainer.vllm_generation.logprobs == 0
    assert "generate" not in vars(trainer.vllm_generation)


def test_a_sampled_token_that_is_missing_or_nan_stays_unknown():
    generation = Generation()
    generation.generate = lambda prompts, images, num_generations, profiler=None: (
        [[4]], [[7, 3]], [[[-0.5], [math.nan]]], [[[1], [3]]]
    )  # fmt: skip
    rollout_logprobs(SimpleNamespace(vllm_generation=generation), 2)

    assert trl_reads(generation) == [[None, None]]


def test_asking_for_several_without_the_wrap_is_refused():
    trainer = SimpleNamespace(vllm_generation=Generation())
    check_logprobs(trainer)
    check_logprobs(SimpleNamespace())
    trainer.vllm_generation.generation_kwargs = {"logprobs": 5}
    with pytest.raises(AttachError, match="the most likely token's log-prob for the sampled one's"):
        check_logprobs(trainer)


def test_a_trainer_without_vllm_and_a_generate_that_moved_are_refused():
    with pytest.raises(AttachError, match="use_vllm=True"):
        rollout_logprobs(SimpleNamespace(), 3)
    moved = Generation()
    moved.generate = lambda prompts: None
    with pytest.raises(AttachError, match=r"generate takes \['prompts'\], expected .*knows TRL"):
        rollout_logprobs(SimpleNamespace(vllm_generation=moved), 3)
    with pytest.raises(ValueError, match="n=0"):
        rollout_logprobs(SimpleNamespace(vllm_generation=Generation()), 0)


@pytest.mark.parametrize(("mode", "name"), [("colocate", "extra_args"), ("server", "vllm_xargs")])
def test_each_request_names_the_step_that_will_train_on_it_beside_what_the_user_asks(mode, name):
    generation = Generation()
    generation.mode, generation.generation_kwargs = mode, {"top_k": 5, name: {"mine": 1}}
    trainer = SimpleNamespace(vllm_generation=generation, state=SimpleNamespace(global_step=0))
    inner, handle = rollout_logprobs(trainer, 2), name_steps(trainer)
    check_logprobs(trainer)

    for step in (0, 4):
        trainer.state.global_step = step
        assert trl_reads(generation) == [[-2.0, -0.1, -1.0]]

    assert generation.asked == [{"top_k": 5, name: {"mine": 1, "entrostat_step": step}} for step in (1, 5)]
    assert generation.generation_kwargs == {"top_k": 5, name: {"mine": 1}}
    handle.remove()
    inner.remove()
    assert "generate" not in vars(generation)
    with pytest.raises(AttachError, match="use_vllm=True"):
        name_steps(SimpleNamespace())


def test_attach_says_that_trl_takes_the_wrong_log_prob(caplog):
    trainer = SimpleNamespace(vllm_generation=Generation())
    warn_of_logprobs(trainer)
    assert not caplog.records

    trainer.vllm_generation.generation_kwargs = {"logprobs": 5}
    warn_of_logprobs(trainer)
    assert "logprobs=5" in caplog.text
