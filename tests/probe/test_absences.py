"""What a run cannot have is absent with its reason, said once."""

from dataclasses import replace

import numpy as np
import pytest
from support.steps import captured, random_step

from entrostat.probe.absences import absences, inputs
from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.reduce import Reducer
from entrostat.probe.signals import signals_of
from entrostat.probe.step import gather
from entrostat.wire.signals import BY_NAME

SETTINGS = Settings(group_size=4)
INPUTS = {"advantages", "log_ratio", "sum_p2", "hidden_norm", "prompt", "reward", "is_top1", "rollout_logp"}


def micro_without(*names):
    micro = captured(random_step(0), measure_all=True)
    for name in names:
        del micro.tensors[name]
    return micro


@pytest.mark.parametrize("gone", [(), *((name,) for name in sorted(INPUTS)), ("advantages", "reward", "prompt")])
def test_a_signal_is_made_or_has_a_reason_and_never_both(gone):
    data = gather([micro_without(*gone)])
    rollouts = [Rollout(data.reward, data.prompt)] if data.reward is not None and data.prompt is not None else []

    made = set(signals_of(data, rollouts, SETTINGS))
    reasons = absences(inputs(data, rollouts), SETTINGS)

    absent = {name for names in reasons.values() for name in names}
    measured = {n for n, s in BY_NAME.items() if s.merge != "derived"}
    by_the_recorder = {"wall_time_s", "step_s", "probe_ms", "probe_share", "reduce_ms"}
    if not gone:
        assert made | absent | by_the_recorder >= measured
    assert not made & absent


def test_the_reason_names_what_is_missing():
    data = gather([micro_without("advantages")])

    reasons = absences(inputs(data, []), replace(SETTINGS, without=frozenset(["perplexity"])))

    assert "cov_mean" in reasons["no advantages were given"]
    assert reasons["the family 'perplexity' is switched off"] == ["ppl"]  # the z-scores are the views' business
    assert "pass_at_8" in reasons["groups have 4 responses"]


def test_it_is_said_once_and_again_only_when_more_goes_missing():
    reduce = Reducer(SETTINGS)
    rollout = Rollout(np.array([1.0]), np.array([0]))

    first = reduce(1, [micro_without()], [rollout], {})
    second = reduce(2, [micro_without()], [rollout], {})
    third = reduce(3, [micro_without("advantages")], [rollout], {})

    assert "event" in first
    assert "event" not in second
    row = third["event"].to_pylist()[0]
    assert row["kind"] == "absent"
    assert "no advantages were given" in row["message"]
    assert "text" not in row["message"]


def test_only_one_rank_says_it():
    assert "event" not in Reducer(SETTINGS, says_absences=False)(1, [micro_without()], [], {})
