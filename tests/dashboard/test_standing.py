"""What is wanted against what is in force: a person must see at a glance whether the trainer has heard."""

import pytest

from entrostat.dashboard.spans import spans_of
from entrostat.dashboard.standing import evidence, lines
from entrostat.wire.messages import ActiveIntervention, DesiredState, Proposal


def wanted(name="kl_cov", params=None, by="person:anna", because="why", **more):
    return ActiveIntervention(name=name, params=params or {}, by=by, because=because, **more)


def told(kind, step, intervention, **more):
    detail = intervention.model_dump(mode="json") | more
    return {"kind": f"intervention_{kind}", "step": step, "message": "", "detail": detail}


def standing(desired, events, last_step=20):
    found = lines(DesiredState(interventions=desired), spans_of(events), events, last_step)
    return [(line.name, line.state, line.since) for line in found]


def test_what_was_asked_for_is_asked_for_until_the_trainer_says_that_it_is_on():
    it = wanted(params={"k": 0.01})

    assert standing([it], []) == [("kl_cov", "asked", None)]
    assert standing([it], [told("on", 7, it)]) == [("kl_cov", "on", 7)]


@pytest.mark.parametrize("change", [{"params": {"k": 0.02}}, {"by": "rule:guard"}, {"because": "another reason"}])
def test_a_change_is_not_in_force_before_it_is_acknowledged(change):
    before, after = wanted(params={"k": 0.01}), wanted(**({"params": {"k": 0.01}} | change))
    events = [told("on", 7, before)]

    assert standing([after], events) == [("kl_cov", "changing", 7)]
    assert standing([after], [*events, told("changed", 9, after)]) == [("kl_cov", "on", 7)]


def test_what_is_not_wanted_any_more_is_in_force_until_the_trainer_says_that_it_is_off():
    it = wanted()
    events = [told("on", 7, it)]

    assert standing([], events) == [("kl_cov", "ending", 7)]
    assert standing([], [*events, told("off", 9, it, why="it is not asked for any more")]) == []


def test_a_refusal_is_of_one_wish_only():
    first, second = wanted(params={"k": 0.5}), wanted(params={"k": 0.01})
    events = [told("refused", 7, first, reason="outside the user's bounds")]
    (line,) = lines(DesiredState(interventions=[first]), [], events, 20)

    assert (line.state, line.note) == ("refused", "outside the user's bounds")
    assert standing([second], events) == [("kl_cov", "asked", None)]


def test_what_is_past_its_last_step_is_over():
    it = wanted(until_step=10)
    events = [told("on", 7, it), told("off", 11, it, why="it was asked for until step 10")]

    assert standing([it], events, last_step=11) == [("kl_cov", "over", None)]
    assert standing([it], [], last_step=5) == [("kl_cov", "asked", None)]


def test_whole_and_real_numbers_are_the_same_parameter():
    it = wanted(params={"beta": 1.0})

    assert standing([it], [told("on", 7, wanted(params={"beta": 1}))]) == [("kl_cov", "on", 7)]


def test_the_values_behind_a_proposal_are_those_of_its_own_rules_newest_event():
    proposal = Proposal(proposal_id="0" * 32, intervention=wanted(by="rule:guard"), step=9)
    events = [
        {"kind": "rule_proposed", "step": 3, "message": "", "detail": {"rule": "guard", "values": {"d_collapse": 0.3}}},
        {"kind": "rule_proposed", "step": 9, "message": "", "detail": {"rule": "guard", "values": {"d_collapse": 0.4}}},
        {"kind": "rule_proposed", "step": 9, "message": "", "detail": {"rule": "other", "values": {"x": 1}}},
    ]

    assert evidence(proposal, events) == {"d_collapse": 0.4}
    assert evidence(proposal, []) == {}
