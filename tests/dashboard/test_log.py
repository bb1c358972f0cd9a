"""The dashboard's process logs in the server's shape."""

import json
import os
import subprocess
import sys

import httpx
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


def test_an_address_that_cannot_be_used_is_said_without_its_password(tmp_path):
    with open(tmp_path / "log", "w") as log:
        process = dashboard(log, free_port(), "--server-url", "http://anna:secret@127.0.0.1:1", token="es_1")

    assert process.wait(PATIENCE_S) == 2
    said = (tmp_path / "log").read_text()
    assert "only one can be sent" in said
    assert "secret" not in said


def test_it_says_when_it_starts_and_stops_and_stops_in_order(tmp_path):
    port, path = free_port(), tmp_path / "log"
    with open(path, "w") as log:
        process = dashboard(log, port, "--server-url", "http://127.0.0.1:1", token="es_" + 4 * DIGITS)
    until(lambda: answers(port), "the dashboard does not answer")
    process.terminate()
    process.wait(PATIENCE_S)

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert process.returncode == 0
    assert [line["event"] for line in lines] == ["started", "stopped"]
    assert lines[0]["url"] == f"http://127.0.0.1:{port}"
    assert DIGITS not in path.read_text()
