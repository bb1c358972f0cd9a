"""The softmax toy: its pieces against numbers by hand, and what is certain about its courses at fixed seeds."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from entrostat.cli.main import app
from entrostat.interventions import chain, iac
from entrostat.interventions.policy_loss import policy_loss
from entrostat.lab.sharpening import advantages, claims, experiment, labels, outcome, report, toy
from entrostat.lab.sharpening.toy import Calibration, Course, Optimiser, Setting
from entrostat.wire.errors import EntrostatError

SEEDS, STEPS = 4, 120


def setting(lr=2.0, optimiser=Optimiser.sgd, calibration=Calibration.none, group_size=4, steps=STEPS):
    return Setting(lr, optimiser, calibration, group_size, steps)


def raw(given, seeds=SEEDS):
    """The outcome of raw rewards."""
    course = toy.train(given, toy.uniforms(range(seeds), given.steps), ("raw",))
    return outcome.outcomes(given, course, ("raw",))[0]


# The pieces


def test_an_untrained_policy_knows_nothing():
    assert labels.logits(torch.zeros(1, 4, 4, dtype=torch.float64), labels.inputs()).softmax(2).unique() == 0.25


def test_a_logit_is_the_product_of_a_labels_weights_with_the_inputs_embedding():
    weights = torch.arange(16, dtype=torch.float64).reshape(1, 4, 4)

    f = labels.logits(weights, labels.inputs())

    assert f.shape == (1, 4, 4)
    assert f[0, 0, labels.DOG] == pytest.approx(8 * 0.75 + 9 * 0.5 + 10 * 0.25 + 11 * 0.1)
    assert f[0, 3, labels.CAT] == pytest.approx(0 * 0.0 + 1 * 0.5 + 2 * 1.0 + 3 * 0.1)


BY_HAND = {
    "raw": [1, 1, 1, 0],
    "mean-shifted": [0.25, 0.25, 0.25, -0.75],
    "normalised": [1 / math.sqrt(3)] * 3 + [-math.sqrt(3)],
    "RLOO": [1 / 3, 1 / 3, 1 / 3, -1],
    "Reinforce++": [1 / math.sqrt(3)] * 3 + [-math.sqrt(3)],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_an_estimator_gives_what_is_computed_by_hand(name):
    rewards = torch.tensor([[1.0, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.float64)

    got = advantages.ESTIMATORS[name](rewards)

    assert got[0].tolist() == pytest.approx(BY_HAND[name], rel=1e-5)
    assert got[1].tolist() == [float(name == "raw")] * 4  # a group that is all right moves only the raw estimator


def test_labels_are_drawn_as_often_as_they_are_likely():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    uniform = (torch.arange(10_000, dtype=torch.float64) + 0.5).reshape(1, -1) / 10_000

    share = toy.sample(logits, uniform)[0].bincount(minlength=4)

    assert (share / 10_000).tolist() == pytest.approx(logits.softmax(1)[0].tolist(), abs=1e-4)


def test_a_seed_draws_the_same_whoever_is_beside_it():
    assert torch.equal(toy.uniforms([3], 5)[:, 0], toy.uniforms([1, 3], 5)[:, 1])
    assert torch.equal(toy.uniforms([3], 5), toy.uniforms([3], 9)[:5])


def by_hand(given, uniform, name):
    """One policy, step by step, from the softmax's gradient; SGD."""
    policy, memory = (torch.zeros(4, 4, dtype=torch.float64) for _ in range(2))
    e = labels.inputs()[0]
    for step in range(given.steps):
        f, size = policy @ e, given.group_size
        sampling = f - given.mu * (memory @ e) if given.calibration is Calibration.iac_dlc else f
        drawn = toy.sample(sampling[None], uniform[step, :1, :size])[0]
        advantage = advantages.ESTIMATORS[name]((drawn < 2).double()[None])[0]
        if given.calibration is not Calibration.none:
            num_positive = int((advantage > 0).sum())
            advantage = torch.where(advantage > 0, advantage * (size - num_positive), advantage)
        one_hot = torch.eye(4, dtype=torch.float64)[drawn]
        push = (advantage[:, None] * (one_hot - f.softmax(0))).mean(0)
        recall = (one_hot - (memory @ e).softmax(0)).mean(0)
        policy = policy + given.lr * push[:, None] * e
        memory = memory + given.lr * recall[:, None] * e
    return (policy @ labels.inputs().T).softmax(0).T  # [inputs, labels]


@pytest.mark.parametrize("calibration", list(Calibration))
@pytest.mark.parametrize("name", ["raw", "normalised"])
def test_our_loss_and_iac_take_the_steps_that_are_derived_by_hand(calibration, name):
    given = setting(lr=0.5, calibration=calibration, group_size=8, steps=25)
    uniform = toy.uniforms([7], given.steps)

    course = toy.train(given, uniform, ("raw", name))

    expected = by_hand(given, uniform, name)
    assert course.probs[-1, 1, 0].tolist() == pytest.approx(expected[0].tolist(), rel=1e-9)
    assert course.siamese[-1, 1, 0].tolist() == pytest.approx(expected[1:, labels.SIAMESE].tolist(), rel=1e-9)


def test_iac_is_the_products_own(monkeypatch):
    """A mistake in our IAC shows in the toy: here it forgets the exponent's base."""
    given = setting(calibration=Calibration.iac, steps=20)
    right = raw(given).cat_share
    method = replace(
        iac.METHOD, make=lambda params: replace(iac.iac(params), apply=lambda tokens, state: (tokens, state))
    )
    monkeypatch.setitem(chain.BY_NAME, "iac", method)

    assert raw(given).cat_share != right


def test_iac_never_weakens_a_centred_advantage():
    """A > 0 needs a wrong one beside it, so G - S+ is at least 1; raw rewards of an all-right group lose everything."""
    for num_right in range(9):
        rewards = (torch.arange(8) < num_right).to(torch.float64)[None]
        for name, estimate in advantages.ESTIMATORS.items():
            advantage = estimate(rewards)[0]
            tokens = calibrated(advantage)
            if name == "raw":
                assert (num_right < 8) or tokens.abs().max() == 0
            else:
                assert (tokens.abs() >= advantage.abs() - 1e-12).all()


def calibrated(advantage):
    """What IAC makes of the advantages [G] of one group: the gradient it gives to each response."""
    logp = torch.zeros(len(advantage), 1, dtype=torch.float64, requires_grad=True)
    groups = torch.zeros(len(advantage), dtype=torch.int64)
    done = policy_loss(
        logp, advantage, torch.ones_like(logp), transforms=chain.chain({"iac": {}}), groups=groups,
        aggregation="fixed", normaliser=1.0,
    )  # fmt: skip
    done.loss.backward()
    return -logp.grad[:, 0]


def test_seeds_do_not_see_each_other():
    given = setting(steps=30)
    alone = toy.train(given, toy.uniforms([2], 30), ("normalised",))
    together = toy.train(given, toy.uniforms([0, 2], 30))

    assert torch.allclose(alone.probs[:, 0, 0], together.probs[:, 2, 1], rtol=0, atol=1e-12)


def course_of(shares):
    """A course of one estimator and one seed, by Cat's share."""
    cat = torch.tensor(shares, dtype=torch.float64)
    probs = torch.stack([0.8 * cat, 0.8 * (1 - cat), torch.full_like(cat, 0.1), torch.full_like(cat, 0.1)], dim=1)
    return Course(probs.reshape(-1, 1, 1, 4), torch.full((len(shares), 1, 1, 3), 0.2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("shares", "step", "counts"),
    [
        ([0.5, 0.96, 0.9, 0.96, 0.97], 3, (1, 0, 0)),
        ([0.5, 0.04, 0.03], 1, (0, 1, 0)),
        ([0.5, 0.96, 0.9], None, (0, 0, 1)),
        ([0.5, 0.5], None, (0, 0, 1)),
    ],
)
def test_a_collapse_is_told_from_the_step_since_which_it_lasts(shares, step, counts):
    o = outcome.outcomes(setting(), course_of(shares), ("raw",))[0]

    assert o.collapse_step == [step]
    assert (o.num_cat, o.num_persian, o.num_both) == counts
    assert o.accuracy == pytest.approx([0.8])
    assert o.mean_lesser == pytest.approx([sum(min(s, 1 - s) for s in shares[1:]) / (len(shares) - 1)])


# What is certain at fixed seeds


def test_raw_rewards_collapse_and_both_labels_win_somewhere():
    o = raw(setting(steps=500), seeds=10)

    assert o.num_both == 0
    assert o.num_cat > 0
    assert o.num_persian > 0


def test_iac_slows_raw_rewards_and_dlc_beside_it_stops_the_collapse():
    bare, slowed, stopped = (raw(setting(2.0, calibration=c, group_size=32, steps=500), seeds=10) for c in Calibration)

    assert bare.num_both < slowed.num_both < stopped.num_both == 10
    assert claims.slower([stopped], [bare]).held == 10


@pytest.mark.parametrize("optimiser", [Optimiser.momentum, Optimiser.adamw])
def test_momentum_and_adamw_are_faster_than_sgd(optimiser):
    """At one step size, over the paper's 500 steps."""
    sgd, other = (raw(setting(0.5, kind, steps=500)) for kind in (Optimiser.sgd, optimiser))

    assert claims.slower([sgd], [other]) == claims.Share(SEEDS, SEEDS)


def test_a_group_that_is_all_right_moves_nothing_once_rewards_are_centred():
    """Why the centred estimators need not collapse: raw rewards go on drifting."""
    logp = torch.zeros(4, 1, dtype=torch.float64, requires_grad=True)
    for name in claims.CENTRED:
        advantage = advantages.ESTIMATORS[name](torch.ones(1, 4, dtype=torch.float64))[0]
        policy_loss(logp, advantage, torch.ones_like(logp)).loss.backward()
    assert logp.grad is not None
    assert logp.grad.abs().max() == 0


def test_siamese_is_squeezed_more_the_more_it_is_like_persian():
    given = setting(0.5)
    course = toy.train(given, toy.uniforms(range(SEEDS), given.steps))
    found = outcome.outcomes(given, course, tuple(advantages.ESTIMATORS))

    assert claims.squeezed(found, "low") == claims.Share(20, 20)
    assert claims.more_squeezed_when_similar(found) == claims.Share(20, 20)


# The command


def lab(*arguments):
    return CliRunner().invoke(app, ["lab", "sharpening", *arguments], env={"COLUMNS": "200"})


SHORT = ("--seeds", "2", "--steps", "3", "--lr", "1", "--group-size", "4", "--group-size", "8")


def test_the_command_prints_every_setting_and_every_claim():
    done = lab(*SHORT)

    assert done.exit_code == 0, done.output
    assert sum(line.split()[0] in advantages.ESTIMATORS for line in done.output.splitlines() if line.strip()) >= 45
    assert "IAC + DLC keeps both, raw, AdamW" in done.output
    assert "more at G = 8 than 4" in done.output


def test_json_has_every_setting_with_its_seeds():
    rows = json.loads(lab(*SHORT, "--json").output)

    assert len(rows) == 2 * 3 * 3 * 5
    assert {len(row["cat_share"]) for row in rows} == {2}
    assert {(row["optimiser"], row["calibration"]) for row in rows} == {(o, c) for o in Optimiser for c in Calibration}


def test_the_picture_is_one_file_that_needs_no_network(tmp_path):
    pytest.importorskip("plotly")
    done = lab(*SHORT, "--picture", str(tmp_path / "toy.html"))

    page = (tmp_path / "toy.html").read_text()
    assert done.exit_code == 0, done.output
    assert page.count("Plotly.newPlot(") == 4  # three optimisers and Siamese
    assert "<script src=" not in page


def test_a_picture_without_plotly_is_refused_before_the_run(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setattr(toy, "train", None)

    with pytest.raises(EntrostatError, match="needs plotly"):
        experiment.run(picture=tmp_path / "toy.html")


def test_a_share_of_nothing_is_a_dash():
    assert report.percent(claims.Share(0, 0)) == "-"
    assert report.percent(claims.Share(1, 4)) == "25% (1/4)"
