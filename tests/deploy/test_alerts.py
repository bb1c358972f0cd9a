"""Alerts fire when they must and only then, speak of metrics that there are, and go where they should."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from entrostat.server.metrics import Metrics
from entrostat.server.readiness import Readiness
from entrostat.storage.store import Store

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
ROUTES = DEPLOY / "alertmanager" / "alertmanager.yml"


def run(tool, *arguments):
    path = shutil.which(tool)
    if path is None:
        pytest.skip(f"no {tool} here; make check runs it too, and gets it where it can (deploy/check-alerts.sh)")
    return subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_prometheus_takes_the_rules_and_each_fires_when_it_must():
    for arguments in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
        done = run("promtool", *arguments[:2], DEPLOY / "prometheus" / arguments[2])

        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_shown_to_fire_and_to_be_silent():
    shown = {"fires": set(), "is silent": set()}
    for case in yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text())["tests"]:
        for one in case["alert_rule_test"]:
            shown["fires" if one["exp_alerts"] else "is silent"].add(one["alertname"])

    every = {rule["alert"] for rule in RULES}
    assert shown == {"fires": every, "is silent": every}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_says_how_grave_it_is_and_what_to_do(rule):
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description", "runbook_url"} == set(rule["annotations"])


def test_alerts_speak_of_metrics_that_the_server_gives():
    with Store("duckdb::memory:") as memory:
        page = Metrics(memory, Readiness(memory).hindrance, 2, "1").registry
        given = {sample for family in page.collect() for sample in _samples(family)}
    given |= {"entrostat_disk_free_bytes", "entrostat_disk_floor_bytes"}  # not of a database in memory
    asked = {name for rule in RULES for name in re.findall(r"\bentrostat_\w+", rule["expr"])}

    assert asked - given == set()


def _samples(family):
    kinds = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {family.name + end for end in kinds.get(family.type, ("",))}


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "urgent"), ("warning", "people"), ("info", "people")])
def test_what_cannot_wait_goes_to_who_is_woken(severity, receiver):
    checked = run("amtool", "check-config", ROUTES)
    routed = run("amtool", "config", "routes", "test", f"--config.file={ROUTES}", f"severity={severity}", "run=r")

    assert checked.returncode == 0, checked.stderr
    assert routed.stdout.strip() == receiver


def test_a_server_that_is_down_silences_what_it_says_and_every_alert_named_in_a_route_exists():
    rules = yaml.safe_load(ROUTES.read_text())["inhibit_rules"]
    named = set(re.findall(r"Entrostat\w+", ROUTES.read_text()))

    assert named <= {rule["alert"] for rule in RULES}
    assert rules[0]["source_matchers"] == ['alertname = "EntrostatServerDown"']
    assert re.match(r'alertname =~ "Entrostat\.\+"', rules[0]["target_matchers"][0])
