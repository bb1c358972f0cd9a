"""The catalogue for those without torch says what the methods themselves say."""

import pytest
from pydantic import ValidationError

from entrostat.interventions.methods import CATALOGUE
from entrostat.wire.errors import BadParameter
from entrostat.wire.interventions import BY_NAME, INTERVENTIONS, exclusion, named


@pytest.mark.parametrize("method", CATALOGUE, ids=lambda m: m.name)
def test_defaults_and_bounds_are_the_methods_own(method):
    declared = BY_NAME[method.name]
    default = method.params()

    assert declared.checked(default.model_dump()) == default.model_dump()
    for param in declared.params:
        for bound, limit in param.bounds.items():
            outside = limit - 1 if bound in ("ge", "gt") else limit + 1
            with pytest.raises(ValidationError):
                method.params(**{param.name: outside})
            with pytest.raises(BadParameter, match=f"{method.name}.{param.name}"):
                declared.checked({param.name: outside})


def test_parameters_left_out_stay_out():
    assert named("kl_cov").checked({"beta": 2}) == {"beta": 2.0}


def test_an_unknown_parameter_is_refused_with_those_there_are():
    with pytest.raises(BadParameter, match=r"kl_cov.betta.*its parameters are k, beta"):
        named("kl_cov").checked({"betta": 2})


def test_an_unknown_intervention_is_refused_with_those_there_are():
    with pytest.raises(BadParameter, match=r"unknown intervention 'scoop': there are .*scope"):
        named("scoop")


def test_who_can_choose_tokens_over_the_whole_step():
    assert {i.name for i in INTERVENTIONS if i.has_threshold} == {"scope", "kl_cov", "clip_cov", "forking_tokens"}


def test_every_one_says_what_it_does_and_allows():
    for i in INTERVENTIONS:
        assert i.meaning, i.name
        assert all(p.meaning and p.allowed for p in i.params), i.name


def test_the_users_bounds_hold_for_defaults_too():
    bounds = {"kl_cov.beta": (0.0, 0.5)}

    assert named("kl_cov").outside({"beta": 0.2}, bounds) is None
    assert "kl_cov.beta=2 is outside what the user of this run allows, 0 to 0.5" in named("kl_cov").outside(
        {"beta": 2.0}, bounds
    )
    assert "kl_cov.beta=1 (its default)" in named("kl_cov").outside({}, bounds)


def test_an_exclusion_holds_both_ways():
    assert exclusion("kl_cov", "clip_cov") == exclusion("clip_cov", "kl_cov") is not None
    assert exclusion("kl_cov", "warp_drive") is None
