"""What is wanted of a run, changed by rules, persons and the kill switch."""

import pytest

from entrostat.wire import intent
from entrostat.wire.errors import Conflict, NotFound
from entrostat.wire.messages import ActiveIntervention, DesiredState, Proposal

BY_RULE = ActiveIntervention(name="scope", params={"lam": 0.1}, because="d_collapse 0.4", by="rule:guard")
BY_HAND = ActiveIntervention(name="scope", params={"lam": 0.5}, because="a try", by="person:anna")
PROPOSAL = Proposal(proposal_id="a" * 32, intervention=BY_RULE, step=7)


def test_switching_on_again_replaces():
    state = intent.switched_on(intent.switched_on(DesiredState(), BY_RULE), BY_HAND)

    assert state.interventions == [BY_HAND]


def test_a_rule_does_not_change_what_a_hand_switched_on():
    state = intent.switched_on(DesiredState(), BY_HAND)

    with pytest.raises(Conflict, match="switched on by anna"):
        intent.switched_on(state, BY_RULE)


def test_what_is_not_on_cannot_be_switched_off():
    with pytest.raises(NotFound, match="casp is not on: on are scope"):
        intent.switched_off(intent.switched_on(DesiredState(), BY_HAND), "casp")


def test_a_rule_has_one_proposal_at_a_time():
    newer = PROPOSAL.model_copy(update={"proposal_id": "b" * 32})

    state = intent.proposed(intent.proposed(DesiredState(), PROPOSAL), newer)

    assert state.proposals == [newer]
    assert intent.withdrawn(state, "rule:guard").proposals == []


def test_an_approved_proposal_is_on_in_the_name_of_the_person():
    state = intent.decided(intent.proposed(DesiredState(), PROPOSAL), PROPOSAL.proposal_id, "anna", approve=True)

    assert state.proposals == []
    assert state.interventions[0].by == "person:anna"
    assert state.interventions[0].params == {"lam": 0.1}
    assert "proposed by guard" in state.interventions[0].because


def test_a_dismissed_proposal_is_gone_and_cannot_be_decided_twice():
    state = intent.decided(intent.proposed(DesiredState(), PROPOSAL), PROPOSAL.proposal_id, "anna", approve=False)

    assert (state.proposals, state.interventions) == ([], [])
    with pytest.raises(NotFound, match="decided or withdrawn"):
        intent.decided(state, PROPOSAL.proposal_id, "anna", approve=True)


def test_after_the_kill_switch_nothing_is_on_until_armed():
    state = intent.stopped(intent.proposed(intent.switched_on(DesiredState(), BY_HAND), PROPOSAL))

    assert (state.interventions, state.proposals, state.is_armed) == ([], [], False)
    with pytest.raises(Conflict, match="arm the run"):
        intent.switched_on(state, BY_HAND)
    assert intent.switched_on(intent.armed(state), BY_HAND).interventions == [BY_HAND]
