"""Views of prompts, tokens and curves: what a person asks when a number looks odd."""

import math

import numpy as np
import pytest


def response(seq, prompt, reward, **more):
    given = {"step": 1, "seq": seq, "prompt": prompt, "reward": reward, "length": 10, "mean_logp": -0.5 - 0.1 * seq}
    return given | {"mean_entropy": 0.2, "ppl": 1.0, "advantage": reward - 0.5} | more


def token(seq, pos, token_id, **more):
    given = {"step": 1, "seq": seq, "pos": pos, "token_id": token_id, "logp": -0.5, "entropy": 1.0}
    return given | {"advantage": 1.0, "cov": 0.1, "reason": "all", "prob": 1.0} | more


def test_a_prompt_on_two_ranks_is_one_row(produce, ask):
    ranks = [produce(rank=k, world_size=2, settings={"group_size": 4, "correct_at": 0.5}) for k in (0, 1)]
    ranks[0].send(sequence=[response(0, 7, 1.0, length=30, mean_entropy=0.6), response(1, 7, 0.0)])
    ranks[1].send(sequence=[response(0, 7, 0.0), response(1, 7, 0.7)])

    row = ask(
        "select num_responses, is_whole, success_rate, reward_mean, mean_entropy, cov, length, difficulty from prompt"
    )[0]
    logp, advantage = np.array([-0.5, -0.6, -0.5, -0.6]), np.array([0.5, -0.5, -0.5, 0.2])
    cov = np.mean((logp - logp.mean()) * (advantage - advantage.mean()))
    assert (*row[:3], row[-1]) == (4, True, 0.5, "medium")
    assert row[3:-1] == pytest.approx((0.425, (30 * 0.6 + 30 * 0.2) / 60, cov, 15.0), rel=1e-4)


@pytest.mark.parametrize(
    ("num_right", "difficulty"), [(0, "never"), (1, "hard"), (2, "medium"), (4, "medium"), (5, "easy"), (6, "always")]
)
def test_difficulty_is_by_thirds_of_the_success_rate(produce, ask, num_right, difficulty):
    produce().send(sequence=[response(i, 1, float(i < num_right)) for i in range(6)])

    assert ask("select difficulty from prompt") == [(difficulty,)]


def test_a_prompt_without_rewards_has_no_difficulty(produce, ask):
    produce().send(sequence=[response(0, 1, 1.0) | {"reward": None, "advantage": None}])

    assert ask("select success_rate, reward_mean, cov, difficulty from prompt") == [(None, None, None, None)]


def test_tokens_are_ranked_within_their_step_over_ranks(produce, ask):
    for rank, covs in ((0, (0.5, -0.3)), (1, (0.2,))):
        rows = [token(0, i, 10 * rank + i, cov=c, logp=math.log(0.5 - 0.2 * rank)) for i, c in enumerate(covs)]
        produce(rank=rank, world_size=2).send(token=[*rows, token(0, 9, 99, step=2, cov=9.0)])

    found = ask("select token_id, rank_cov, share_cov, scope, share_scope from top_token where step = 1 order by 2")
    assert [(r[0], r[1]) for r in found] == [(0, 1), (10, 2), (1, 3)]
    assert [r[2] for r in found] == pytest.approx([0.5, 0.2, -0.3], abs=1e-6)
    assert [r[3] for r in found] == pytest.approx([0.25, 0.21, 0.25], abs=1e-4)
    assert sum(r[4] for r in found) == pytest.approx(1.0)


def test_tokens_add_up_by_their_weights_and_the_list_can_be_followed_over_steps(produce, ask):
    one = produce()
    one.send(
        token=[
            token(0, 0, 5, cov=0.4, prob=0.5, text="so"),
            token(0, 1, 5, cov=0.2, prob=1.0, text="so"),
            token(0, 2, 6, cov=-1.0, prob=1.0, text="the"),
            token(0, 0, 5, step=2, cov=0.1, advantage=-1.0),
        ]
    )

    found = ask("select token_id, text, num_rows, count_estimate, cov_mass, share_cov from token_mass where step = 1")
    assert sorted(found) == [
        (5, "so", 2, 3.0, pytest.approx(1.0), pytest.approx(0.5)),
        (6, "the", 1, 1.0, pytest.approx(-1.0), pytest.approx(-0.5)),
    ]
    assert ask("select step, scope_mass, share_scope from token_mass where token_id = 5 order by step")[1] == (
        2,
        0.0,
        None,
    )


def test_curves_add_up_over_ranks(produce, ask):
    for rank, (count, total) in enumerate([(3, 1.5), (1, 2.5)]):
        produce(rank=rank, world_size=2).send(
            profile=[{"step": 1, "name": "entropy_by_position", "bin": 19, "count": count, "total": total}]
        )

    assert ask("select name, bin, low, high, count, total, mean from profile") == [
        ("entropy_by_position", 19, 0.95, 1.0, 4, 4.0, 1.0)
    ]
