"""The examples of docs/export.md run on a real export and say what the store says."""

import re
from pathlib import Path

import pytest
from support import exported_run
from support.exports import tar_of, unpacked

from entrostat.storage.exports.layout import TABLES, file_name
from entrostat.storage.store import Store

PAGE = (Path(__file__).parents[3] / "docs" / "export.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each example leaves behind, and the store it is about."""
    folder = tmp_path_factory.mktemp("docs")
    with Store("duckdb::memory:") as store:
        exported_run.fill(store, run="my-run")
        unpacked(tar_of(store, "my-run"), folder / "my-run")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            left = [{} for _ in EXAMPLES]
            for example, names in zip(EXAMPLES, left):
                exec(example, names)
        yield left, store


def test_there_is_an_example_for_each_program():
    assert [re.search(r"import (\S+)", example)[1] for example in EXAMPLES] == ["pyarrow.dataset", "pandas", "duckdb"]


def test_the_examples_say_what_the_store_says(said):
    (arrow, pandas, _), store = said
    wanted = store.query(
        "select step, sum(entropy / prob) / sum(1 / prob) as e from token group by step order by step", 1000
    ).table.to_pylist()

    assert arrow["late"].column_names == ["step", "logp", "entropy", "prob"]
    assert arrow["late"].num_rows > 0
    assert pandas["weighted"].to_dict() == pytest.approx({row["step"]: row["e"] for row in wanted}, rel=1e-6)


def test_every_file_is_on_the_page():
    assert [name for name in map(file_name, TABLES.values()) if f"`{name}`" not in PAGE] == []
