"""What may be done to a run: of what the trainer can have, what the user allows."""

import logging

import pytest

from entrostat.trainer_adapters.permissions import permissions_of
from entrostat.trainer_adapters.session import from_environment
from entrostat.wire.errors import AttachError, BadParameter
from entrostat.wire.interventions import BY_NAME
from entrostat.wire.messages import Mode

CANNOT = {"scope": "there is no reference model"}


def test_by_default_nothing_may_be_done():
    assert permissions_of(from_environment(), {}).mode == Mode.observe


def test_without_a_list_everything_the_trainer_can_have_is_allowed():
    found = permissions_of(from_environment(mode="act"), CANNOT)

    assert set(found.allow) == set(BY_NAME) - {"scope"}


def test_what_the_trainer_cannot_have_cannot_be_allowed():
    with pytest.raises(AttachError, match="allow='scope': there is no reference model"):
        permissions_of(from_environment(mode="act", allow=["kl_cov", "scope"]), CANNOT)


def test_the_mode_comes_from_the_environment_too(monkeypatch):
    monkeypatch.setenv("ENTROSTAT_MODE", "advise")

    assert permissions_of(from_environment(), {}).mode == Mode.advise
    assert permissions_of(from_environment(mode="act"), {}).mode == Mode.act


def test_allow_without_a_mode_is_said_to_have_no_effect(caplog):
    with caplog.at_level(logging.WARNING):
        permissions_of(from_environment(allow=["kl_cov"]), {})

    assert "has no effect in mode observe" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "autopilot"}, "mode='autopilot': it is one of observe, advise, act"),
        ({"allow": ["scoop"]}, "unknown intervention 'scoop'"),
        ({"bounds": {"kl_cov.betta": (0, 1)}}, r"bounds\['kl_cov.betta'\]: kl_cov has the parameters k, beta"),
        ({"bounds": {"kl_cov.beta": (2, 1)}}, "the lowest value is above the highest"),
        ({"grace_s": 0}, "grace_s=0"),
        ({"on_lost": "panic"}, "on_lost='panic'"),
    ],
)
def test_a_wrong_option_names_itself_and_what_it_may_be(options, message):
    with pytest.raises((ValueError, BadParameter), match=message):
        from_environment(**options)
