"""docs/reliability.md is true as far as a machine can tell: its tests, log events, alerts and metrics exist."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
EVENT = re.compile(r'event\(\s*_log,\s*(?:logging\.[A-Z]+|level),\s*"([a-z_]+)"|\.error\(\s*"([a-z_]+)"')


def slug(heading):
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


ANCHORS = {slug(heading) for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)}


def test_every_test_that_it_names_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or not re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]

    assert len(named) > 40
    assert missing == []


def test_every_event_of_the_log_is_in_its_table_and_every_one_there_is_logged():
    sources = [
        p.read_text() for folder in ("server", "storage", "dashboard", "wire") for p in (ROOT / folder).rglob("*.py")
    ]
    logged = {name for text in sources for found in EVENT.findall(text) for name in found if name}
    logged.add("log")
    table = PAGE.split("## The log")[1].split("## Health")[0]
    told = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}

    assert told == logged


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_leads_to_its_section_which_names_it(alert):
    page, anchor = alert["annotations"]["runbook_url"].split("#")
    sections = {slug(text.splitlines()[0]): text for text in re.split(r"^#+ ", PAGE, flags=re.MULTILINE) if text}

    assert page == "docs/reliability.md"
    assert f"`{alert['alert']}`" in sections[anchor]


def test_every_alert_that_it_names_exists():
    assert set(re.findall(r"`(Entrostat\w+)`", PAGE)) == {alert["alert"] for alert in ALERTS}


def test_links_within_the_page_lead_somewhere():
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= ANCHORS
