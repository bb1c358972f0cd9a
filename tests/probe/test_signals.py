"""Every signal against its formula in plain loops, whole and however the step is cut into micro-batches."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import signals_oracle as oracle
from support.steps import CANDIDATES, captured, random_step
from support.texts import spell

from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.signals import MAKERS, signals_of
from entrostat.probe.signals.entropy import curves
from entrostat.probe.signals.groups import complete_groups, pass_at_k
from entrostat.probe.step import gather
from entrostat.probe.text.decode import texts_of
from entrostat.probe.text.reader import Reader
from entrostat.wire.signals import BY_NAME, FAMILIES, FAMILY_OF

DEFINITIONS = Settings(group_size=4, eps_low=0.2, eps_high=0.28)

FORMULAS = {
    "entropy_mean": oracle.entropy_mean,
    "entropy_pos": lambda s: oracle.entropy_mean(s, +1),
    "entropy_neg": lambda s: oracle.entropy_mean(s, -1),
    "rank_logp_1": lambda s: oracle.rank_logp(s, 1),
    "rank_logp_2": lambda s: oracle.rank_logp(s, 2),
    "rank_logp_3": lambda s: oracle.rank_logp(s, 3),
    "sample_logp": oracle.sample_logp,
    "top1_rate": oracle.top1_rate,
    "cov_mean": lambda s: np.mean(oracle.cov_tokens(s)),
    "cov_top_0_02pct": lambda s: oracle.cov_top(s, 0.0002),
    "cov_top_0_2pct": lambda s: oracle.cov_top(s, 0.002),
    "cov_top_2pct": lambda s: oracle.cov_top(s, 0.02),
    "cov_top_20pct": lambda s: oracle.cov_top(s, 0.2),
    "token_grad_norm": lambda s: oracle.token_grad_norm(s, 0.2, 0.28, with_norm=True),
    "token_grad_norm_logits": lambda s: oracle.token_grad_norm(s, 0.2, 0.28, with_norm=False),
    "zero_advantage_rate": lambda s: np.mean([a == 0 for r in s for a in r["A"]]),
    "expected_distinct": lambda s: oracle.expected_distinct(s, 4, CANDIDATES)[0],
    "expected_distinct_bound": lambda s: oracle.expected_distinct(s, 4, CANDIDATES)[1],
    "support95_mean": lambda s: np.mean([oracle.support95(x, CANDIDATES) for r in s for x in r["logps"]]),
    "support95_beyond": lambda s: np.mean(
        [oracle.support95(x, CANDIDATES) > CANDIDATES for r in s for x in r["logps"]]
    ),
    "self_certainty": lambda s: np.mean([oracle.self_certainty_of(x) for r in s for x in r["logps"]]),
    "scope_score": lambda s: np.mean(oracle.scope_scores(s)),
    "ppl": oracle.ppl,
    "reward_mean": lambda s: np.mean([r["reward"] for r in s]),
    "reward_std": oracle.reward_std,
    "zero_variance_groups": oracle.zero_variance_groups,
    "all_right_groups": oracle.all_right_groups,
    "all_wrong_groups": oracle.all_wrong_groups,
    "pass_at_1": lambda s: oracle.pass_at_k(s, 1),
    "pass_at_2": lambda s: oracle.pass_at_k(s, 2),
    "pass_at_4": lambda s: oracle.pass_at_k(s, 4),
    "length_mean": lambda s: np.mean([len(r["logp"]) for r in s]),
    "length_max": lambda s: max(len(r["logp"]) for r in s),
    "truncated_rate": lambda s: np.mean([r["truncated"] for r in s]),
    "clip_fraction_low": lambda s: oracle.clip_fraction(s, low=0.2),
    "clip_fraction_high": lambda s: oracle.clip_fraction(s, high=0.28),
    "approx_kl": oracle.approx_kl,
    "ratio_max": oracle.ratio_max,
    **{s.name: partial(oracle.mismatch, key=s.name) for s in FAMILIES["mismatch"]},
    "num_tokens": lambda s: sum(len(r["logp"]) for r in s),
    "num_responses": len,
    "num_invalid_tokens": lambda s: 0,
}


def values(step, cuts=()):
    """The signals of a step cut into micro-batches at ``cuts``."""
    edges = [0, *sorted(set(cuts)), len(step)]
    data = gather([captured(step[a:b], measure_all=True) for a, b in pairwise(edges) if b > a])
    rollout = Rollout(np.array([r["reward"] for r in step]), np.array([r["prompt"] for r in step]))
    found = {name: part.value for name, part in signals_of(data, [rollout], DEFINITIONS).items()}
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize("seed", range(5))
def test_every_signal_is_its_formula(seed):
    step = random_step(seed)
    found = values(step)

    assert set(FORMULAS) == set(found)
    for name, formula in FORMULAS.items():
        assert found[name] == pytest.approx(formula(step), rel=1e-9, abs=1e-12), name


def test_every_per_step_signal_of_the_vocabulary_has_a_formula_here():
    made_elsewhere = {"wall_time_s", "step_s", "probe_ms", "probe_share", "reduce_ms"}
    made_elsewhere |= {s.name for s in FAMILIES["rollout"]}  # tests/trainer_adapters/test_vllm_rollout_stream.py
    needs_larger_groups = {"pass_at_8", "pass_at_16", "pass_at_32", "pass_at_64"}
    declared = {n for n, s in BY_NAME.items() if s.merge != "derived" and "text" not in s.needs}

    assert declared - made_elsewhere - needs_larger_groups == set(FORMULAS)


@settings(max_examples=30, deadline=None)
@example(seed=294, cuts=[])  # no response with a positive advantage: entropy_pos has no value
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(1, 11), max_size=4))
def test_a_step_cut_into_micro_batches_gives_the_same_values(seed, cuts):
    step = random_step(seed)

    whole, parts = values(step), values(step, cuts)

    assert whole == pytest.approx(parts, rel=1e-12, abs=1e-13)


def test_a_group_that_is_not_all_there_is_left_out_of_group_signals():
    step = random_step(1, num_prompts=2)[:7]

    found = values(step)

    assert found["pass_at_2"] == pytest.approx(oracle.pass_at_k(step[:4], 2))


def test_without_advantages_signals_that_need_them_are_absent_rather_than_zero():
    micro = captured(random_step(0))
    del micro.tensors["advantages"]

    found = signals_of(gather([micro]), [], DEFINITIONS)

    assert not {"entropy_pos", "cov_mean", "scope_score", "reward_mean", "token_grad_norm"} & set(found)
    assert "entropy_mean" in found


def test_tokens_with_nan_statistics_are_left_out_and_counted():
    step = random_step(3)
    micro = captured(step)
    micro.tensors["entropy"][0, 0] = float("nan")
    clean = [dict(r) for r in step]
    for key in ("logp", "entropy", "A", "old", "top1", "ranks", "rollout"):
        clean[0][key] = clean[0][key][1:]

    found = signals_of(gather([micro]), [], DEFINITIONS)

    assert found["num_invalid_tokens"].value == 1
    if clean[0]["logp"]:
        assert found["entropy_mean"].value == pytest.approx(oracle.entropy_mean(clean))


@settings(max_examples=30, deadline=None)
@example(seed=294, cuts=[])  # no response with a positive advantage: entropy_pos has no value
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(1, 11), max_size=4))
def test_curves_over_positions_are_their_formula_however_the_step_is_cut(seed, cuts):
    step = random_step(seed, longest=50)
    edges = [0, *sorted(set(cuts)), len(step)]
    made = curves(gather([captured(step[a:b]) for a, b in pairwise(edges) if b > a]))

    for name, sign in (("", 0), ("_pos", +1), ("_neg", -1)):
        count, total = made[f"entropy_by_position{name}"]
        wanted = oracle.entropy_by_position(step, sign)
        assert {int(i): int(count[i]) for i in np.flatnonzero(count)} == {i: n for i, (n, _) in wanted.items()}
        assert {int(i): float(total[i]) for i in np.flatnonzero(count)} == pytest.approx(
            {i: h for i, (_, h) in wanted.items()}
        )


def test_expected_distinct_lies_between_its_bounds():
    """Of the whole vocabulary, from its first candidates only (CaSP Prop. 3)."""
    step = random_step(5)
    whole = np.mean([sum(1 - (1 - np.exp(x)) ** 4 for x in logps) for r in step for logps in r["logps"]])
    found = values(step)

    assert found["expected_distinct"] <= whole <= found["expected_distinct_bound"]


def test_a_switched_off_family_makes_nothing():
    step = gather([captured(random_step(0))])
    step = replace(step, reading=Reader(texts_of(spell)).read(step))
    everything = set(signals_of(step, [], DEFINITIONS))

    for family in MAKERS:
        left = set(signals_of(step, [], replace(DEFINITIONS, without=frozenset([family]))))
        gone = everything - left
        assert {FAMILY_OF[name] for name in gone} == {family}


@given(n=st.integers(1, 12), data=st.data())
def test_pass_at_1_is_the_share_of_right_responses_and_grows_with_k(n, data):
    c = data.draw(st.integers(0, n))
    series = [pass_at_k(n, c, k) for k in range(1, n + 1)]

    assert series[0] == pytest.approx(c / n)
    assert series == sorted(series)
    assert series[-1] == float(c > 0)


def test_groups_are_found_whatever_the_order_of_responses():
    prompt = np.array([7, 3, 7, 3, 9])

    found = {tuple(sorted(members)) for members in complete_groups(prompt, 2)}

    assert found == {(0, 2), (1, 3)}


def test_an_unscored_response_takes_its_group_out_of_the_reward_signals():
    reward = np.array([1.0, np.nan, 0.0, 1.0])
    rollout = Rollout(reward, np.array([0, 0, 1, 1]))

    found = signals_of(gather([captured(random_step(0))]), [rollout], Settings(group_size=2))

    assert found["reward_mean"].value == pytest.approx(2 / 3)
    assert found["pass_at_1"].value == pytest.approx(0.5)
