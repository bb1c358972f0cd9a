"""A server of the test's own, which may be killed and started again."""

import pytest
from support.service import Process


@pytest.fixture
def server(tmp_path):
    made = Process("entrostat.server", "--data", tmp_path / "data").start("/healthz")
    yield made
    made.stop()
