"""``entrostat lab``: what it prints, and its exit status."""

import numpy as np
import pytest
from typer.testing import CliRunner

from entrostat.cli.main import app
from entrostat.lab.theory import registry
from entrostat.lab.theory.finding import Finding
from entrostat.probe.signals import scope


def lab(*arguments):
    return CliRunner().invoke(app, ["lab", *arguments], env={"COLUMNS": "200"})


def test_theory_prints_every_identity_with_its_error_and_ends_well():
    done = lab("theory", "--cases", "3", "--seed", "5")

    found = registry.findings(5, 3)
    assert done.exit_code == 0, done.output
    assert len({f.identity for f in found}) == len(found) == 28
    assert all(f.identity in done.output and f"{f.error:.1e}" in done.output for f in found)
    assert f"all {len(found)} hold" in done.output
    assert "order" in done.output
    assert "coupling" in done.output


def test_theory_names_what_is_broken_and_fails(monkeypatch):
    monkeypatch.setattr(scope, "scope_token", lambda step: np.exp(step.logp))

    done = lab("theory", "--cases", "3")

    assert done.exit_code == 1
    assert "broken: S = L + R" in done.output


def test_the_same_seed_gives_the_same_table_and_another_gives_another():
    assert registry.findings(1, 2) == registry.findings(1, 2)
    assert registry.findings(1, 2) != registry.findings(2, 2)


@pytest.mark.parametrize("error", [float("nan"), 2.0])
def test_an_error_above_its_bound_or_not_a_number_does_not_hold(error):
    assert not Finding("x", "", "", 1, error, 1.0).holds


def test_the_experiment_has_the_same_options_under_both_names():
    by_group = lab("many-answers", "--help").output

    assert all(option in by_group for option in ("--steps", "--seeds", "--teach-steps"))
