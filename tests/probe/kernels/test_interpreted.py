"""The Triton kernels on the CPU, in Triton's interpreter: what they compute, not how fast."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]
FILES = sorted(p.name for p in (HERE / "interpreted").glob("test_*.py"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("file", FILES)
def test_in_the_interpreter(file):
    """A process of its own, for the rest of the tests must not run with TRITON_INTERPRET set; see its own lines."""
    path = HERE / "interpreted" / file
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", path]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
