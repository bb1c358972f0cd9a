"""The whole API against its own OpenAPI document: schemathesis sends what fits it and what does not, to a real server.

``make faults`` sends more to each endpoint, drawn anew each time (``make test`` always draws the same).
"""

import subprocess
import sys
from pathlib import Path

import pytest
from support.faults import FAULTS

from entrostat.server.auth import add_token

CHECKS = ["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--exclude-path", "/v1/runs/import"]
"""All checks but one: a schema cannot say which texts are SQL, or rules, or which name the address repeats. And all
routes but one: it takes a tar, which ``tests/storage/exports/test_hostile.py`` makes up."""
RUN = {"run_id": "my-run", "session_id": f"{1:032x}", "started": "2026-01-01T00:00:00Z"}


def fuzzed(server, folder, *options):
    drawn = ["--max-examples", str(FAULTS)] if FAULTS else ["--max-examples", "4", "--generation-deterministic"]
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json", *drawn, *CHECKS,
        "--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off", "--no-color", *options,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize("with_tokens", [False, True], ids=["open", "with tokens"])
def test_every_answer_is_as_documented_and_none_is_the_servers_fault(own_server, tmp_path, with_tokens):
    headers = {}
    if with_tokens:
        headers["Authorization"] = f"Bearer {add_token(tmp_path / 'data' / 'tokens.json', 'fuzz', ['admin'])}"
    server = own_server().start()
    server.http.put(f"/v1/streams/{1:032x}", json=RUN, headers=headers).raise_for_status()
    done = fuzzed(server, tmp_path, *(f"--header={name}: {value}" for name, value in headers.items()))

    assert done.returncode == 0, done.stdout[-10_000:]
    assert server.http.get("/healthz").json()["status"] == "ok"
