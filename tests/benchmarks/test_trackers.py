"""The benchmark's own parts: what it says was kept must be there, and a broken record must not count."""

import logging
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def trackers(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import trackers

    ours = logging.getLogger("entrostat")
    level = ours.level
    yield trackers
    ours.setLevel(level)  # ours is silenced where it is measured, which is a process of its own


@pytest.fixture
def logged(trackers, tmp_path):
    """Logs three steps with a tool and gives its folder."""
    from trackers.work import blocks, scalars

    def log_three(name, work):
        tool = trackers.TOOLS[name]
        with tool.start(tmp_path, work) as log:
            for step in range(3):
                log(step, scalars()[step], blocks()[step])
        return tool

    return log_three


@pytest.mark.parametrize("work", ["scalars", "tokens"])
@pytest.mark.parametrize(
    "name",
    ["floor: append to a file", "floor: a Parquet file a step", "floor: a DuckDB INSERT a step", "entrostat"],
)
def test_a_reader_finds_every_step_that_was_logged(logged, tmp_path, name, work):
    tool = logged(name, work)

    assert tool.steps_left(tmp_path, work) == {0, 1, 2}


def test_a_step_whose_tokens_are_cut_short_is_not_counted(logged, tmp_path):
    tool = logged("floor: a Parquet file a step", "tokens")
    path = tmp_path / "tokens-1.parquet"
    path.write_bytes(path.read_bytes()[:-100])

    assert tool.steps_left(tmp_path, "tokens") == {0, 2}


def test_the_budget_of_ours_is_counted_by_its_rows(logged, tmp_path, trackers):
    tool = logged("entrostat, 4,096 rows", "tokens")

    assert tool.steps_left(tmp_path, "tokens") == {0, 1, 2}
    assert trackers.TOOLS["entrostat"].steps_left(tmp_path, "tokens") == set()


def test_every_tracker_has_a_pinned_environment_and_work_to_do(trackers):
    from trackers.environments import NEEDS

    packages = {tool.package for tool in trackers.TOOLS.values() if tool.package}
    with_scalars = {tool.package for tool in trackers.TOOLS.values() if tool.package and "scalars" in tool.works}

    assert packages == with_scalars == set(NEEDS)
    assert all(needs[0].startswith(f"{package}==") for package, needs in NEEDS.items())


def test_only_environments_that_have_a_tracker_are_taken(trackers):
    from trackers.environments import find

    assert find([]) == {}
    assert find([Path(sys.executable)]).keys().isdisjoint({"wandb", "mlflow"})
