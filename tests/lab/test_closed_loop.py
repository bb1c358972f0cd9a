"""The closed loop's arithmetic, and its arms against a real server for a few steps."""

import time

import pytest
from support.patience import until
from support.service import Process

from entrostat.lab.many_answers import arms, closed_loop, task, teach
from entrostat.lab.many_answers.evaluate import Evaluation
from entrostat.wire.client import Client
from entrostat.wire.rules.text import parse_or_raise


def row(arm, seed, pass1, distinct):
    return closed_loop.Row(arm, seed, "r", Evaluation(pass1, {1: pass1, 8: 1.0}, distinct, 0.5))


def test_means_are_over_seeds_with_their_standard_error():
    (mean,) = closed_loop.means([row("a", 0, 0.2, 4.0), row("a", 1, 0.4, 8.0)])

    assert (mean.arm, mean.num_seeds) == ("a", 2)
    assert mean.pass1 == pytest.approx((0.3, 0.1))
    assert mean.distinct == pytest.approx((6.0, 2.0))


def test_the_curve_is_read_between_its_points_and_not_beyond_them():
    points = [(0.9, 2.0), (0.5, 6.0), (0.7, 5.0)]

    assert closed_loop.curve_at(0.6, points) == pytest.approx(5.5)
    assert closed_loop.curve_at(0.9, points) == pytest.approx(2.0)
    assert closed_loop.curve_at(0.95, points) is None


def test_every_arms_rule_is_one_a_server_takes():
    import json

    for arm in closed_loop.ARMS:
        if arm.rule is not None:
            (rule,) = parse_or_raise(json.dumps([{"name": "demo", "mode": "act", **arm.rule}]))
            assert rule.mode == "act"


def test_the_picture_has_every_arm_and_the_curve():
    rows = [row(arm.name, seed, 0.5 + 0.01 * i, 5.0) for i, arm in enumerate(closed_loop.ARMS) for seed in (0, 1)]

    names = {trace.name for trace in closed_loop.picture(rows).data}

    assert {"constant entropy bonus", *(arm.name for arm in closed_loop.ARMS)} <= names


@pytest.mark.slow
def test_the_thermostat_acts_in_a_short_run_and_the_plain_arm_is_left_alone(tmp_path):
    server = Process("entrostat.server", "--data", tmp_path / "data").start("/healthz")
    try:
        client = Client(server.url)
        tokenizer = task.make_tokenizer()
        taught = teach.make_model(tokenizer, seed=0)
        teach.teach(taught, tokenizer, seed=0, steps=20)
        before = {name: value.clone() for name, value in taught.state_dict().items()}
        # The little that it was taught leaves the entropy above the band: held higher, so that there is much to do.
        held = {**arms.THERMOSTAT.rule, "hold": {"signal": "entropy_mean", "at": 2.5, "band": 0.05}}

        def slow_down(step):  # a step of this model takes less time than a loaded machine's server needs to answer
            if step == 12:
                until(lambda: "thermostat" in {run["run"] for run in client.get("/v1/runs")["runs"]})
                until(lambda: client.desired("thermostat").interventions, "the rule asked for nothing")
            if step >= 12 and not client.get("/v1/runs/thermostat/control")["in_force"]:
                time.sleep(1.0)

        for arm, on_step in ((arms.PLAIN, None), (arms.Arm("thermostat", "held", held), slow_down)):
            arms.run_arm(
                arm, client, taught, tokenizer, run=arm.name, steps=25, seed=0, directory=tmp_path / "spool",
                scratch=str(tmp_path), evaluate_every=10, on_step=on_step,
            )  # fmt: skip
        on = client.sql("select run, count(*) as n from event where kind = 'intervention_on' group by run")[
            0
        ].to_pylist()
        logged = client.sql(
            "select run, count(*) as n from step_metric where name = 'trainer/eval/distinct_right' group by run"
        )[0].to_pylist()
    finally:
        server.stop()

    assert on == [{"run": "thermostat", "n": 1}]
    assert sorted((r["run"], r["n"]) for r in logged) == [("plain", 2), ("thermostat", 2)]
    assert is_as_it_was(before, taught)


def is_as_it_was(before, taught):
    return all((value == taught.state_dict()[name]).all() for name, value in before.items())
