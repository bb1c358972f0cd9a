"""The dashboard's process logs in the server's shape."""

import json
import os
import subprocess
import sys

import httpx
from support.patience import PATIENCE_S, until
from support.service import free_port


def dashboard(log, port, *arguments):
    command = [sys.executable, "-m", "entrostat.dashboard", "--port", str(port), *arguments]
    environment = os.environ | {"ENTROSTAT_DASHBOARD_LOG_FORMAT": "json", "ENTROSTAT_TOKEN": "es_" + "0123456789" * 4}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment)


def answers(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/")
    except httpx.HTTPError:
        return None


def test_it_says_when_it_starts_and_stops_and_stops_in_order(tmp_path):
    port, path = free_port(), tmp_path / "log"
    with open(path, "w") as log:
        process = dashboard(log, port, "--server-url", "http://anna:secret@127.0.0.1:1")
    until(lambda: answers(port), "the dashboard does not answer")
    process.terminate()
    process.wait(PATIENCE_S)

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert process.returncode == 0
    assert [line["event"] for line in lines] == ["started", "stopped"]
    assert lines[0]["url"] == f"http://127.0.0.1:{port}"
    assert "secret" not in path.read_text()
    assert "0123456789" not in path.read_text()
