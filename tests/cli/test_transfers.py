"""Export, import, delete, and SQL on what was exported, as people type them."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from support import exported_run
from support.service import Process

from entrostat.wire import codec
from entrostat.wire.client import Client


def entrostat(*arguments, check=True, said=None):
    done = subprocess.run(
        [sys.executable, "-m", "entrostat.cli.main", *map(str, arguments)],
        capture_output=True, check=False, text=True, input=said,
    )  # fmt: skip
    if check:
        assert done.returncode == 0, done.stderr
    else:
        assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = Process("entrostat.server", "--data", tmp_path_factory.mktemp("cli") / "data").start("/healthz")
    with Client(running.url) as client:
        for seed, run in enumerate(("full", "second")):
            exported_run.send(
                client.open_stream, lambda *at: client.post_batch(*at[:2], codec.encode(at[2])), run=run, seed=seed
            )
    yield running
    running.stop()


def test_a_run_is_exported_asked_deleted_and_brought_back(server, tmp_path):
    folder, tar, at = tmp_path / "full", tmp_path / "full.tar", ("--url", server.url)
    question = "select process_rank, producer, count(*) as n, sum(token_id) as s from token group by all order by all"
    wanted = json.loads(entrostat("sql", question, *at, "-f", "json").stdout)

    assert "exported full" in entrostat("runs", "export", "full", "--to", folder, *at).stdout
    entrostat("runs", "export", "second", "--to", tar, *at)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "full.tar"]
    assert pq.read_table(folder / "token_row.parquet").num_rows == 840
    asked = entrostat("sql", question, "--from", folder, "--from", tar, "-f", "json")
    assert json.loads(asked.stdout) == wanted

    said = entrostat("runs", "delete", "full", *at, said="n\n", check=False)
    assert "full: begun" in said.stdout
    assert "5 streams" in said.stdout
    assert "rows in 21 batches" in said.stdout
    assert "--export PATH keeps a copy" in said.stdout
    assert said.returncode != 0
    deleted = entrostat("runs", "delete", "full", "--export", tmp_path / "last", *at, said="y\n").stdout
    assert "deleted full" in deleted
    assert (tmp_path / "last" / "manifest.json").exists()
    assert "imported back: " in entrostat("runs", "import", tmp_path / "last", "--as", "back", *at).stdout
    assert json.loads(entrostat("sql", question, *at, "-f", "json").stdout) == wanted
    entrostat("runs", "delete", "second", "--yes", *at)
    assert "imported second" in entrostat("runs", "import", tar, *at).stdout
    assert json.loads(entrostat("sql", question, *at, "-f", "json").stdout) == wanted


def test_what_is_there_is_not_written_over_and_what_failed_is_not_left(server, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    done = entrostat("runs", "export", "second", "--to", there, "--url", server.url, check=False)
    assert done.stderr.startswith(f"entrostat: {there} is there already")
    done = entrostat("runs", "export", "nobody", "--to", tmp_path / "x.tar", "--url", server.url, check=False)
    assert done.stderr.startswith("entrostat: 404 not_found")
    done = entrostat("runs", "import", there, "--url", server.url, check=False)
    assert "there is no manifest.json" in done.stderr
    done = entrostat("runs", "import", tmp_path / "none.tar", "--url", server.url, check=False)
    assert "there is no" in done.stderr
    done = entrostat("sql", "select 1", "--from", there, check=False)
    assert "there is no manifest.json" in done.stderr
    (tmp_path / "bad.tar").write_bytes(b"x" * 5000)
    done = entrostat("runs", "import", tmp_path / "bad.tar", "--url", server.url, check=False)
    assert done.stderr.startswith("entrostat: 422 malformed_export")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tar", "there"]
