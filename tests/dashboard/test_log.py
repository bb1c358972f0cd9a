"""The dashboard's process logs in the server's shape."""

import json
import os
import subprocess
import sys

import httpx
import pytest
from support.patience import PATIENCE_S, until
from support.service import free_port

DIGITS = "0123456789"


def dashboard(log, port, *arguments, token):
    command = [sys.executable, "-m", "entrostat.dashboard", "--port", str(port), *arguments]
    environment = os.environ | {"ENTROSTAT_DASHBOARD_LOG_FORMAT": "json", "ENTROSTAT_TOKEN": token}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment)


def answers(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/")
    except httpx.HTTPError:
        return None


@pytest.mark.parametrize(("address", "token"), [("anna:secret@127.0.0.1:1", ""), ("127.0.0.1:1", "es_" + 4 * DIGITS)])
def test_it_says_when_it_starts_and_stops_and_stops_in_order(tmp_path, address, token):
    port, path = free_port(), tmp_path / "log"
    with open(path, "w") as log:
        process = dashboard(log, port, "--server-url", f"http://{address}", token=token)
    until(lambda: answers(port), "the dashboard does not answer")
    process.terminate()
    process.wait(PATIENCE_S)

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert process.returncode == 0
    assert [line["event"] for line in lines] == ["started", "stopped"]
    assert lines[0]["url"] == f"http://127.0.0.1:{port}"
    assert "secret" not in path.read_text()
    assert DIGITS not in path.read_text()
