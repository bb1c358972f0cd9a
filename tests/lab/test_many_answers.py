"""The demo's task: what is right, that teaching is repeatable, that evaluation counts as it says."""

import random
from itertools import combinations
from math import comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entrostat.lab.many_answers import evaluate, grpo, task, teach


@pytest.fixture(scope="module")
def taught():
    tokenizer = task.make_tokenizer()
    model = teach.make_model(tokenizer, seed=0)
    losses = []
    teach.teach(model, tokenizer, steps=30, on_progress=lambda _step, loss: losses.append(loss))
    return model, tokenizer, losses


@given(n=st.sampled_from(list(task.SUMS)), data=st.data())
def test_every_right_answer_is_accepted_and_no_other_sum(n, data):
    a, b = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 99))

    assert task.is_right(f"{n}=", f"{a}+{b}") == (a + b == n)
    assert all(task.is_right(f"{n}=", answer) for answer in task.right_answers(n))


@pytest.mark.parametrize("answer", ["", "17", "+17", "17+", "017+0", "8+9+0", "8-9", "8+9=", "100+0"])
def test_what_is_not_a_sum_of_two_numbers_is_wrong(answer):
    assert not task.is_right("17=", answer)


def test_the_tokenizer_gives_back_what_it_was_given():
    tokenizer = task.make_tokenizer()

    for text in ("17=", "8+9", "40+19"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert len(tokenizer.encode(text)) == len(text)


def test_the_teaching_set_is_wrong_as_often_as_it_says():
    draw = random.Random(0)
    pairs = [task.teaching_pair(draw) for _ in range(4000)]

    assert sum(not task.is_right(*pair) for pair in pairs) / 4000 == pytest.approx(task.WRONG_SHARE, abs=0.03)


def test_the_opening_teaches_the_second_number_of_right_answers():
    tokenizer = task.make_tokenizer()

    ids, labels = teach._opening_batch(tokenizer, random.Random(0))

    for row, wanted in zip(ids.tolist(), labels.tolist(), strict=True):
        text = tokenizer.decode(row, skip_special_tokens=True)
        prompt, answer = text[: text.index("=") + 1], text[text.index("=") + 1 :]
        assert task.is_right(prompt, answer)
        learned = tokenizer.decode([i for i in wanted if i != -100], skip_special_tokens=True)
        assert learned == answer[answer.index("+") :]


def test_teaching_lowers_the_loss_and_is_repeatable(taught):
    model, tokenizer, losses = taught
    again = teach.make_model(tokenizer, seed=0)
    teach.teach(again, tokenizer, steps=30)

    opening = losses[:2]  # after steps 10 and 20; then the loss is on whole answers
    assert opening[1] < opening[0] - 0.2
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_evaluation_leaves_the_random_state_and_counts_by_hand(taught, monkeypatch):
    model, tokenizer, _ = taught
    answers = [["8+2", "8+2", "5+5", "1+1"]] + [["1+1"] * 4] * (len(task.SUMS) - 1)
    before = torch.random.get_rng_state()
    real = evaluate.evaluate(model, tokenizer, samples_per_prompt=2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert 0 < real.entropy < 3

    monkeypatch.setattr(evaluate, "_sample", lambda *_: (answers, 0.5))
    counted = evaluate.evaluate(model, tokenizer, samples_per_prompt=4)

    prompts = len(task.SUMS)
    draws = list(combinations([True, True, True, False], 2))
    assert counted.pass1 == pytest.approx(0.75 / prompts)
    assert counted.pass_at[2] == pytest.approx(sum(any(d) for d in draws) / comb(4, 2) / prompts)
    assert counted.distinct_right == pytest.approx(2 / prompts)


def test_grpo_trains_the_taught_model(taught, tmp_path):
    model, tokenizer, _ = taught
    steps = []
    trainer = grpo.make_trainer(model, tokenizer, steps=3, output_dir=tmp_path, on_step=steps.append)

    trainer.train()

    assert steps == [1, 2, 3]
    logged = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logged) == 3
    assert all(row["completions/max_length"] <= grpo.MAX_COMPLETION for row in logged)
