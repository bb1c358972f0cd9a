"""Options that a trainer without an ``attach`` call takes from the environment."""

import pytest

from entrostat.trainer_adapters.session import from_environment
from entrostat.wire.errors import BadParameter
from entrostat.wire.messages import Mode


def test_allow_and_bounds_are_read_as_attach_takes_them(monkeypatch):
    monkeypatch.setenv("ENTROSTAT_MODE", "act")
    monkeypatch.setenv("ENTROSTAT_ALLOW", "kl_cov, entropy_bonus,")
    monkeypatch.setenv("ENTROSTAT_BOUNDS", "kl_cov.beta=0:2, entropy_bonus.c=0.001:0.01")

    found = from_environment()

    assert found.mode == Mode.act
    assert found.allow == {"kl_cov", "entropy_bonus"}
    assert found.bounds == {"kl_cov.beta": (0.0, 2.0), "entropy_bonus.c": (0.001, 0.01)}


def test_an_argument_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("ENTROSTAT_ALLOW", "kl_cov")

    assert from_environment(allow=["clip_cov"]).allow == {"clip_cov"}


def test_nothing_set_allows_what_the_trainer_can_have(monkeypatch):
    monkeypatch.setenv("ENTROSTAT_ALLOW", "")

    assert from_environment().allow is None


def test_a_name_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("ENTROSTAT_ALLOW", "kl_covv")

    with pytest.raises(BadParameter, match="kl_covv"):
        from_environment()


@pytest.mark.parametrize("text", ["kl_cov.beta", "kl_cov.beta=1", "kl_cov.beta=a:b"])
def test_bounds_that_cannot_be_read_say_how_they_look(monkeypatch, text):
    monkeypatch.setenv("ENTROSTAT_BOUNDS", text)

    with pytest.raises(ValueError, match="is not like kl_cov"):
        from_environment()
