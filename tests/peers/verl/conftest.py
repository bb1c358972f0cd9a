"""Only where verl is: these tests run in a virtual environment of their own, by ``make test-verl``.

Elsewhere nothing here is collected; pytest given this folder alone then ends with status 5, so that ``make test-verl``
cannot pass without verl.
"""

import os
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("verl") else ["test_*.py"]

if find_spec("verl"):  # this file is imported where its tests are not run, too
    # Before anybody imports verl: its engines run here on the CPU, and find the entry of CUDA's.
    os.environ |= {
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": "peers.verl.cpu_platform",
    }

_LARGEST = pytest.StashKey[dict[str, float]]()


def pytest_configure(config):
    config.stash[_LARGEST] = {}


@pytest.fixture
def note_difference(request):
    """Keeps the largest difference seen under a name, for the table at the end."""
    largest = request.config.stash[_LARGEST]

    def note(name, difference):
        largest[name] = max(largest.get(name, 0.0), difference)

    return note


def pytest_terminal_summary(terminalreporter, config):
    if largest := config.stash[_LARGEST]:
        terminalreporter.section("largest difference from verl")
        terminalreporter.write_line("gradients over the largest of verl's; losses over the sum of its gradients' sizes")
        for name, difference in sorted(largest.items()):
            terminalreporter.write_line(f"{name:48} {difference:.1e}")
