"""``entrostat rules`` as people type it: a file is checked without a server, put on one, replayed on a run."""

import json
import subprocess
import sys

import pytest
from support.service import FakeRun, Process

from entrostat.wire.rules.pack import pack_text

GUARD = """
- name: guard
  when: {signal: entropy_mean, below: 0.2, for_steps: 3}
  do: {intervention: scope, params: {lam: 0.1}}
"""
WRONG = "- name: guard\n  when: {signal: entropy_men, below: 0.2}\n"


def rules(*arguments, text=None, check=True):
    done = subprocess.run(
        [sys.executable, "-m", "entrostat.cli.main", "rules", *map(str, arguments)],
        capture_output=True, text=True, check=False, input=text,
    )  # fmt: skip
    if check:
        assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Process("entrostat.server", "--data", tmp_path_factory.mktemp("rules")).start("/healthz")
    yield made
    made.stop()


def test_a_file_is_checked_without_a_server(tmp_path):
    (tmp_path / "good.yaml").write_text(pack_text())

    assert rules("check", tmp_path / "good.yaml").stdout.startswith("7 rules, no mistakes: entropy-collapse, ")
    done = rules("check", "-", text=WRONG, check=False)
    assert done.returncode == 1
    assert "guard: when.signal (line 2): unknown signal 'entropy_men'; did you mean entropy_mean?" in done.stderr


def test_the_pack_is_printed_as_it_can_be_checked():
    assert rules("pack").stdout == pack_text()


def test_rules_are_added_listed_replayed_and_removed(server, tmp_path):
    url = f"--url={server.url}"
    (tmp_path / "guard.yaml").write_text(GUARD)
    run = FakeRun(server.url, "falling")
    run.report(range(6), value=lambda step: 0.5 if step < 2 else 0.1)

    assert rules("add", tmp_path / "guard.yaml", url).stdout == "guard: version 1\n"
    assert "guard" in rules("list", url).stdout
    assert "scope lam=0.1" in rules("list", url).stdout
    told = json.loads(rules("replay", "falling", "--format=json", url).stdout)
    assert [(one["step"], one["rule"], one["kind"]) for one in told] == [(4, "guard", "rule_proposed")]
    rules("remove", "guard", url)
    assert "no rules yet" in rules("list", url).stderr


def test_a_file_with_a_mistake_adds_nothing(server):
    done = rules("add", "-", f"--url={server.url}", text=GUARD + WRONG, check=False)

    assert done.returncode == 1
    assert "no rules yet" in rules("list", f"--url={server.url}").stderr
