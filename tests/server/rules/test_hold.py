"""The thermostat in a closed loop: a first-order plant with noise, a limit it cannot pass, a person in between."""

import dataclasses

import numpy as np
import pytest

from entrostat.server.rules.actions import Control, applied
from entrostat.server.rules.history import Facts, Row
from entrostat.server.rules.hold import has_moved, moved_by, outside, rounded
from entrostat.server.rules.lifecycle import evaluate
from entrostat.server.rules.state import Controller, RuleState
from entrostat.wire import intent
from entrostat.wire.messages import DesiredState, Mode, Permissions
from entrostat.wire.rules.rule import read_rule

THERMOSTAT = {
    "name": "thermostat",
    "hold": {"signal": "entropy_mean", "at": 0.35, "band": 0.05},
    "with": {"intervention": "kl_cov", "param": "beta", "min": 0, "max": 4, "gain": 2.0, "integral": 0.1},
    "mode": "act",
}
ALLOWED = Permissions(mode=Mode.act, allow=["kl_cov"])


class Loop:
    """Entropy that goes to ``rest`` plus ``effect`` times beta, with a time constant of 10 steps."""

    def __init__(self, rest=0.2, effect=0.1, noise=0.0, start=0.6, seed=0, permissions=ALLOWED, rule=THERMOSTAT):
        self.rule = read_rule(rule)
        self.rest, self.effect, self.noise, self.entropy = rest, effect, noise, start
        self.random = np.random.default_rng(seed)
        self.control, self.state = Control(DesiredState(), permissions), RuleState()
        self.entropies, self.betas, self.actions, self.step_number = [], [], [], 0

    @property
    def beta(self):
        held = intent.on(self.control.desired, "kl_cov")
        return 0.0 if held is None else held.params["beta"]

    def step(self, num=1, is_known=True):
        for _ in range(num):
            self.entropy += (self.rest + self.effect * self.beta - self.entropy) / 10
            seen = self.entropy + self.random.normal(0, self.noise)
            row = Row(self.step_number, {"entropy_mean": seen} if is_known else {})
            before = RuleState.model_validate_json(self.state.model_dump_json())
            self.state, actions = evaluate(self.rule, before, Facts("r", row.step, row.step, [row]), self.control)
            self.by_hand(lambda desired, actions=actions: applied(desired, actions))
            self.actions += actions
            self.entropies.append(self.entropy)
            self.betas.append(self.beta)
            self.step_number += 1
        return self

    def by_hand(self, change):
        self.control = dataclasses.replace(self.control, desired=change(self.control.desired))


def turns(values, least=0.01):
    """How often a curve turns by more than ``least``."""
    count, direction, extreme = 0, 0, values[0]
    for value in values:
        if (direction >= 0 and value > extreme) or (direction <= 0 and value < extreme):
            direction, extreme = (direction or np.sign(value - extreme)), value
        elif abs(value - extreme) > least:
            count, direction, extreme = count + 1, -direction, value
    return count


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.02])
def test_it_brings_the_signal_into_the_band_and_keeps_it_there_without_swinging(seed, noise):
    loop = Loop(noise=noise, seed=seed).step(400)
    late = np.array(loop.entropies[150:])

    assert (np.abs(late - 0.35) <= 0.05 + noise).all()
    assert turns(loop.entropies[150:], least=0.02 + noise) == 0
    assert 0.5 < loop.beta < 2.0  # what lifts 0.2 into the band is between 1.0 and 2.0 at its edges, with noise


def test_with_little_noise_the_desired_state_soon_rests():
    loop = Loop(noise=0.001).step(400)
    late = [a for a in loop.actions if a.step > 200]

    assert len(late) <= 5
    assert len(loop.actions) < 150


def test_it_is_off_while_the_signal_is_inside_the_band_by_itself():
    loop = Loop(rest=0.36, start=0.38).step(200)

    assert loop.actions == []
    assert loop.control.desired == DesiredState()


def test_it_goes_off_again_when_the_signal_holds_itself():
    loop = Loop().step(200)
    assert loop.beta > 0
    loop.rest = 0.5
    loop.step(300)

    assert loop.beta == 0.0
    assert loop.control.desired.interventions == []


def test_at_its_limit_nothing_winds_up():
    loop = Loop(rest=0.0, effect=0.05).step(500)  # beta 4 lifts to 0.2 only
    assert loop.beta == 4.0
    loop.rest = 0.45  # and now the signal comes up by itself
    loop.step(60)

    # 500 steps of error would have added up to 2.0 * 0.1 * 0.1 * 500 = 10: two and a half times the range.
    assert loop.state.controller.integral <= 4.0
    assert loop.beta < 2.0
    loop.step(300)
    assert loop.beta == 0.0


def test_it_moves_no_faster_than_it_may():
    loop = Loop(rule=THERMOSTAT | {"with": THERMOSTAT["with"] | {"gain": 50.0, "max_change_per_step": 0.25}}).step(100)

    assert np.abs(np.diff([0.0, *loop.betas])).max() <= 0.25 + 1e-3


def test_a_parameter_that_lowers_the_signal_has_a_negative_gain():
    rule = THERMOSTAT | {"with": THERMOSTAT["with"] | {"gain": -2.0}}
    loop = Loop(rest=0.6, effect=-0.1, rule=rule).step(400)

    assert np.abs(np.array(loop.entropies[200:]) - 0.35).max() <= 0.051
    assert loop.beta > 0


def test_what_is_not_known_moves_nothing():
    loop = Loop().step(60)
    before = loop.state.controller
    loop.step(20, is_known=False)

    assert loop.state.controller == before


def test_the_users_bounds_are_within_its_own():
    loop = Loop(rest=0.0, permissions=ALLOWED.model_copy(update={"bounds": {"kl_cov.beta": (0.5, 1.5)}})).step(300)

    assert max(loop.betas) == 1.5
    assert min(b for b in loop.betas if b) == 0.5


def test_what_a_person_switches_off_starts_again_after_the_cooldown():
    loop = Loop().step(100)
    loop.by_hand(lambda desired: intent.switched_off(desired, "kl_cov"))
    loop.step(50)
    assert loop.betas[-50:] == [0.0] * 50
    assert loop.state.controller.integral == 0.0
    loop.step(5)

    assert loop.beta > 0


def test_where_the_run_only_advises_it_proposes_and_nothing_adds_up():
    loop = Loop(permissions=ALLOWED.model_copy(update={"mode": Mode.advise})).step(300)

    assert loop.beta == 0.0
    assert len(loop.control.desired.proposals) == 1
    assert loop.state.controller.integral == 0.0
    assert 0 < len(loop.actions) < 30


def test_an_approved_value_is_the_persons():
    loop = Loop(permissions=ALLOWED.model_copy(update={"mode": Mode.advise})).step(100)
    (proposal,) = loop.control.desired.proposals
    loop.by_hand(lambda desired: intent.decided(desired, proposal.proposal_id, "anna", approve=True))
    version = loop.control.desired
    loop.step(100)

    assert loop.control.desired == version


def test_where_the_run_observes_it_says_now_and_then_what_it_would_do():
    loop = Loop(permissions=Permissions()).step(300)

    assert loop.control.desired == DesiredState()
    assert {a.kind for a in loop.actions} == {"rule_adjusted"}
    assert 0 < len(loop.actions) < 30
    assert "would be, but the run only observes" in loop.actions[0].message


def test_the_kill_switch_puts_it_back_to_the_start():
    loop = Loop().step(100)
    loop.by_hand(intent.stopped)
    loop.step(3)

    assert loop.state.controller == Controller()
    assert [a.kind for a in loop.actions[-1:]] == ["rule_ended"]


def test_beyond_the_dead_zone_counts_and_inside_nothing_does():
    assert [round(outside(e, 0.1), 6) for e in (-0.3, -0.1, 0.0, 0.05, 0.1, 0.25)] == [-0.2, 0.0, 0.0, 0.0, 0.0, 0.15]


def test_small_moves_are_not_written_but_limits_are():
    ends = {0.0, 4.0}

    assert not has_moved(1.005, 1.0, 4.0, ends, 0.01)
    assert has_moved(1.02, 1.0, 4.0, ends, 0.01)
    assert has_moved(4.0, 3.999, 4.0, ends, 0.01)
    assert not has_moved(4.0, 4.0, 4.0, ends, 0.01)
    assert not has_moved(0.003, 0.001, 4.0, ends, 0.01)
    assert (rounded(0.123456), rounded(1234.56)) == (0.1235, 1235.0)


def test_one_step_of_the_controller_is_the_formula():
    rule = read_rule(THERMOSTAT)
    after = moved_by(rule, Controller(integral=0.3, output=0.5), 0.2, 0.0, 4.0)

    growth = 2.0 * 0.1 * 0.125  # gain x integral x (0.15 - half the band)
    assert after.integral == pytest.approx(0.3 + growth)
    assert after.output == pytest.approx(2.0 * 0.125 + 0.3 + growth)
