"""``entrostat serve`` is the server's process: what is done to the one is done to the other."""

import signal
import subprocess
import sys

import httpx
import pytest
from support.patience import PATIENCE_S, until
from support.service import free_port


def answers(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v1/ready").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_command_stops_the_server_in_order(tmp_path, number):
    port, log = free_port(), tmp_path / "log"
    command = [
        sys.executable,
        "-m",
        "entrostat.cli.main",
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--port",
        str(port),
    ]
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
    until(lambda: answers(port), "the server does not answer")
    process.send_signal(number)

    assert process.wait(PATIENCE_S) == 0
    assert f"stopped logger=entrostat.server.run signal={number.name}" in log.read_text()
    assert not (tmp_path / "data" / "entrostat.duckdb.wal").exists()
    assert not answers(port)
