"""The tree of six rewarded paths: its pieces by hand, and what is certain at fixed seeds."""

import itertools
import json
import math

import pytest
import torch
from typer.testing import CliRunner

from entrostat.cli.main import app
from entrostat.lab.tree import mdp, methods, outcome, report, train
from entrostat.lab.tree.outcome import Outcome
from entrostat.lab.tree.train import Plan

CASP = methods.casp(4, 0.5, 1.1, 0.0)


def plan(lrs=(10.0,), num_seeds=3, steps=250, group_size=64, has_end=True):
    return Plan(lrs, num_seeds, steps, group_size, has_end)


def outcomes(active, given=None):
    given = given or plan()
    return outcome.outcomes("x", active, given.lrs, train.train(given, active, train.uniforms(given)))


# The pieces


def test_the_states_are_the_prefixes_each_once():
    prefixes = ["", *mdp.ACTIONS, *("".join(p) for p in itertools.product(mdp.ACTIONS, repeat=2))]

    assert [mdp.state(p) for p in prefixes] == list(range(mdp.NUM_STATES))


def test_six_paths_are_rewarded():
    assert [path for path, right in zip(mdp.PATHS, mdp.IS_REWARDED.tolist(), strict=True) if right] == sorted(
        mdp.REWARDED
    )


def test_a_paths_probability_is_the_product_of_its_choices():
    logits = torch.randn(mdp.NUM_STATES, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = logits.softmax(1)

    probs = mdp.path_probs(logits)

    assert probs.sum() == pytest.approx(1)
    assert probs[mdp.PATHS.index("BDC")] == pytest.approx(float(p[0, 1] * p[mdp.state("B"), 3] * p[mdp.state("BD"), 2]))


def test_paths_are_drawn_as_often_as_they_are_likely():
    logits = torch.randn(1, mdp.NUM_STATES, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    uniform = (torch.arange(100_000, dtype=torch.float64) + 0.5).reshape(1, -1) / 100_000

    share = mdp.sample(logits, uniform)[0].bincount(minlength=64) / 100_000

    assert share.tolist() == pytest.approx(mdp.path_probs(logits)[0].tolist(), abs=2e-5)


def test_the_advantage_is_that_of_grpo():
    got = train.advantages(torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.float64))

    assert got[0].tolist() == pytest.approx([math.sqrt(3)] + [-1 / math.sqrt(3)] * 3, rel=1e-5)
    assert got[1].tolist() == [0.0] * 4


@pytest.mark.parametrize("has_end", [True, False])
def test_the_loss_is_given_the_choices_of_each_path_and_its_end(has_end):
    logits = torch.randn(2, mdp.NUM_STATES, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    paths = torch.tensor([[mdp.PATHS.index("ACD")], [mdp.PATHS.index("DBA")]])

    logp, entropy, top, is_top1 = train.seen(logits, paths, has_end)

    p = logits[1, mdp.state("DB")].softmax(0)
    assert logp.shape == entropy.shape == is_top1.shape == top.shape[:2] == (2, 3 + has_end)
    assert logp[:, :3].sum(1).exp().tolist() == pytest.approx(
        [float(mdp.path_probs(logits)[m, path]) for m, path in enumerate(paths[:, 0])]
    )
    assert entropy[1, 2] == pytest.approx(float(-(p * p.log()).sum()))
    assert top[1, 2].exp().tolist() == pytest.approx(sorted(p.tolist(), reverse=True))
    assert bool(is_top1[1, 2]) == (int(p.argmax()) == 0)
    assert not has_end or (entropy[:, 3].abs().max() == 0 and logp[:, 3].abs().max() == 0)


def test_one_step_of_grpo_is_the_one_derived_by_hand():
    """From the uniform start: at a visited state each logit moves by lr / 3G times the sum of A ([v = y] - 1/4)."""
    given = plan(lrs=(0.7,), num_seeds=1, steps=1, group_size=8)
    uniform = train.uniforms(given)
    paths = mdp.sample(torch.zeros(1, mdp.NUM_STATES, 4, dtype=torch.float64), uniform[0])[0]
    advantage = train.advantages(mdp.IS_REWARDED[paths].double()[None])[0]
    logits = torch.zeros(mdp.NUM_STATES, 4, dtype=torch.float64)
    for path, a in zip(paths.tolist(), advantage.tolist(), strict=True):
        for s, y in zip(mdp.STATES[path].tolist(), mdp.CHOICES[path].tolist(), strict=True):
            logits[s] -= 0.7 * a * 0.25 / 24
            logits[s, y] += 0.7 * a / 24

    assert advantage.abs().max() > 0
    assert train.train(given, {}, uniform)[0, 0].tolist() == pytest.approx(mdp.path_probs(logits).tolist())


def test_step_sizes_and_seeds_do_not_see_each_other():
    both, alone = plan(lrs=(1.0, 10.0), num_seeds=2, steps=20), plan(lrs=(10.0,), num_seeds=1, steps=20)

    assert torch.allclose(
        train.train(both, CASP, train.uniforms(both))[1, 0],
        train.train(alone, CASP, train.uniforms(alone))[0, 0],
        rtol=0,
        atol=1e-12,
    )


def made(accuracy, modes, family="CaSP", lr=1.0):
    return Outcome(family, {}, lr, [accuracy], [modes], [[accuracy] + [0.0] * 5])


def test_a_mode_is_a_rewarded_path_with_half_a_percent():
    probs = torch.zeros(1, 1, 64, dtype=torch.float64)
    for path, p in (("ACD", 0.005), ("CAB", 0.0049), ("DBA", 0.9), ("AAA", 0.0901)):
        probs[0, 0, mdp.PATHS.index(path)] = p

    o = outcome.outcomes("GRPO", {}, (1.0,), probs)[0]

    assert o.modes == [2]
    assert o.accuracy == pytest.approx([0.9099])
    assert o.probs[0] == pytest.approx([0.005, 0, 0, 0, 0.0049, 0.9])


def test_the_frontier_the_best_and_the_nearest():
    a, b, c, d = made(1.0, 1), made(0.99, 4), made(0.98, 4), made(0.5, 6)

    assert outcome.frontier([c, a, d, b]) == [d, b, a]
    assert outcome.best([c, a, d, b], 0.985) is b
    assert outcome.best([d], 0.99) is None
    assert outcome.nearest([a, b, c, d], (6, 0.48)) is d


def test_the_claims_count_seeds():
    grpo, casp = Outcome("GRPO", {}, 1.0, [1.0, 1.0], [2, 3], []), Outcome("CaSP", {}, 1.0, [1.0, 1.0], [4, 5], [])

    lines = report.claims([grpo, casp])

    assert "1 or 2 modes in 1 of 2 runs" in lines[0]
    assert "4.5 modes to GRPO's 2.5" in lines[1]
    assert "in 1 of 2 seeds" in lines[1]
    assert "in 0 of its 1 settings" in lines[1]


# What is certain at fixed seeds


def test_grpo_ends_with_one_or_two_modes_and_is_right():
    o = outcomes({})[0]

    assert max(o.modes) <= 2
    assert min(o.accuracy) >= 0.99


def test_casp_on_every_choice_keeps_at_least_twice_as_many_at_the_same_accuracy():
    bare, kept = outcomes({})[0], outcomes(CASP)[0]

    assert min(kept.accuracy) >= 0.99
    assert all(b >= 2 * a for a, b in zip(bare.modes, kept.modes, strict=True))


def test_without_the_end_casp_leaves_a_choice_out_and_keeps_fewer():
    assert outcomes(CASP, plan(has_end=False))[0].mean_modes < outcomes(CASP)[0].mean_modes


def test_a_large_entropy_bonus_keeps_all_six_and_is_wrong_half_the_time():
    """The paper's point: six modes, accuracy 0.48."""
    o = outcomes({"entropy_bonus": {"c": 1.0}})[0]

    assert o.modes == [6, 6, 6]
    assert 0.4 < o.mean_accuracy < 0.6


# The command


def lab(*arguments):
    return CliRunner().invoke(app, ["lab", "tree", *arguments], env={"COLUMNS": "200"})


SHORT = ("--seeds", "2", "--steps", "2", "--lr", "1", "--lr", "30", "--group-size", "8")


def test_the_command_prints_every_method():
    done = lab(*SHORT)

    assert done.exit_code == 0, done.output
    assert done.output.count("CaSP N=") >= 20
    assert "6 modes, 0.48" in done.output


def test_json_has_every_method_at_every_step_size():
    rows = json.loads(lab(*SHORT, "--json").output)

    assert len(rows) == 2 * len(list(methods.methods()))
    assert all(len(row["modes"]) == 2 and len(row["probs"][0]) == 6 for row in rows)


def test_the_picture_is_one_file_that_needs_no_network(tmp_path):
    pytest.importorskip("plotly")
    done = lab(*SHORT, "--picture", str(tmp_path / "tree.html"))

    page = (tmp_path / "tree.html").read_text()
    assert done.exit_code == 0, done.output
    assert page.count("Plotly.newPlot(") == 3
    assert "<script src=" not in page
