"""The folders at the top are the package, whole and late (docs/decisions/0001)."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("wire", "probe", "interventions", "trainer_adapters", "storage", "server", "dashboard", "cli", "lab")
DATA_FILES = (".css", ".js", ".svg", ".sql")


def run(code):
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_is_linked_and_is_itself(folder):
    link = ROOT / "src" / "entrostat" / folder

    assert link.is_symlink()
    assert link.resolve() == ROOT / folder


def test_importing_entrostat_brings_neither_torch_nor_a_trainer_nor_a_server():
    heavy = ("torch", "trl", "transformers", "duckdb", "fastapi", "dash", "pyarrow")

    loaded = run(f"import sys, entrostat; print([m for m in {heavy} if m in sys.modules])")

    assert loaded == "[]"


@pytest.mark.parametrize("module", ["entrostat.server.app", "entrostat.storage.store", "entrostat.dashboard.app"])
def test_the_services_half_runs_without_torch(module):
    assert run(f"import sys, {module}; print('torch' in sys.modules)") == "False"


def test_the_probe_needs_no_trainer_library():
    assert run("import sys, entrostat; entrostat.Probe; print('transformers' in sys.modules)") == "False"


def test_the_command_line_is_quick_to_answer_for_help():
    heavy = ("torch", "duckdb", "fastapi", "dash", "pyarrow")

    assert run(f"import sys, entrostat.cli.main; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_what_is_promised_at_the_top_can_be_imported():
    import entrostat

    assert all(getattr(entrostat, name) is not None for name in entrostat.__all__)


def test_the_wheel_built_from_the_sdist_holds_every_file(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    wheel = next(tmp_path.glob("*.whl"))

    held = set(zipfile.ZipFile(wheel).namelist())

    wanted = {
        f"entrostat/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix == ".py" or path.suffix in DATA_FILES
    }
    assert wanted - held == set()


def test_oracles_import_nothing_of_ours():
    for path in (ROOT / "tests" / "reference").glob("*.py"):
        assert not re.search(r"^\s*(from|import) entrostat", path.read_text(), re.MULTILINE), path
