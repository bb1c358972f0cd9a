"""Every rule in the docs is one that a server takes."""

import re
from pathlib import Path

import pytest

from entrostat.server.rules.routes import sql_problems
from entrostat.storage.store import Store
from entrostat.wire.rules.pack import pack
from entrostat.wire.rules.text import parse_or_raise

PAGE = (Path(__file__).parents[3] / "docs" / "rules.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_has_examples():
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize("text", BLOCKS)
def test_an_example_is_read_and_its_sql_can_be_asked(text, tmp_path):
    rules = parse_or_raise(text)

    assert rules
    with Store(f"duckdb://{tmp_path / 'test.duckdb'}") as store:
        assert [problem for rule in rules for problem in sql_problems(store, rule)] == []


def test_the_page_names_every_rule_of_the_pack():
    said = PAGE.lower().replace("-", " ")

    assert [rule.name for rule in pack() if rule.name.replace("-", " ") not in said] == []
