"""Signals and tables: declared once, with a unit and a meaning, and of one mind with the rules that add them up."""

import re

import pyarrow as pa
import pytest

from entrostat.wire.mergeable import STATE_LENGTH
from entrostat.wire.signals import BY_NAME, HISTOGRAMS, SIGNALS, _unique
from entrostat.wire.tables import EVENT, TABLES, empty, meaning_of


def test_names_are_good_in_sql_and_prometheus_and_nowhere_twice():
    assert len(BY_NAME) == len(SIGNALS)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in BY_NAME)
    with pytest.raises(ValueError, match="entropy_mean"):
        _unique(BY_NAME["entropy_mean"], BY_NAME["entropy_mean"])


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_a_signal_says_what_it_is(signal):
    assert signal.merge in {*STATE_LENGTH, "derived"}
    assert signal.unit in {"nats", "share", "tokens", "ms", "s", "1"}
    assert signal.meaning.endswith(".")
    assert signal.source
    assert signal.better in {"up", "down", "none"}


def test_a_largest_value_is_merged_as_one():
    assert {s.name for s in SIGNALS if s.name.endswith("_max")} <= {s.name for s in SIGNALS if s.merge == "max"}


@pytest.mark.parametrize("name", TABLES)
def test_every_column_has_a_meaning_and_a_plain_type(name):
    for field in TABLES[name]:
        assert meaning_of(field).endswith("."), field.name
        assert not pa.types.is_large_string(field.type)
    assert empty(name).schema.equals(TABLES[name])


def test_every_table_has_a_step():
    assert all("step" in schema.names for schema in TABLES.values())
    assert EVENT.field("step").nullable


def test_histograms_have_a_unit_and_a_meaning():
    assert all(s.unit and s.meaning.endswith(".") for s in HISTOGRAMS.values())
