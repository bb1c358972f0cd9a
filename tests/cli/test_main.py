"""The command as people type it: in a process of its own, its output read back."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest
from support.service import FakeRun, Process

from entrostat.wire.metric_names import DIALECTS
from entrostat.wire.signals import SIGNALS


def entrostat(*arguments, check=True, **environment):
    import os

    done = subprocess.run(
        [sys.executable, "-m", "entrostat.cli.main", *map(str, arguments)],
        capture_output=True, check=False, env={**os.environ, "COLUMNS": "200", **environment},
    )  # fmt: skip
    if check:
        assert done.returncode == 0, done.stderr.decode()
    return done


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database with one small run, that no server holds."""
    from entrostat.storage.store import Store

    path = tmp_path_factory.mktemp("cli") / "some.duckdb"
    Store(f"duckdb://{path}").close()
    return path


def test_help_names_every_command():
    text = entrostat("--help").stdout.decode()

    for command in (
        "up",
        "serve",
        "dashboard",
        "demo",
        "sql",
        "runs",
        "push",
        "signals",
        "interventions",
        "doctor",
        "backup",
        "restore",
        "check",
    ):
        assert command in text


def test_signals_lists_every_signal_with_unit_and_source():
    text = entrostat("signals").stdout.decode()

    assert all(signal.name in text for signal in SIGNALS)
    assert "Exchange Eq. 3" in text


@pytest.mark.parametrize("trainer", ["trl", "verl"])
def test_signals_says_what_every_key_of_a_trainer_is(trainer):
    text = entrostat("signals", "--trainer", trainer).stdout.decode()

    assert all(entry.key in text for entry in DIALECTS[trainer].entries)
    assert "approx_kl" in text


def test_interventions_lists_what_the_table_of_methods_has():
    text = entrostat("interventions").stdout.decode()

    assert "clip_higher" in text
    assert "entropy_bonus" in text


def test_sql_on_a_file_prints_a_table(database):
    text = entrostat("sql", "--database", database, "select 40 + 2 as answer").stdout.decode()

    assert "answer" in text
    assert "42" in text


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "arrow"])
def test_sql_prints_what_programs_read(database, tmp_path, form):
    out = tmp_path / "result"

    entrostat("sql", "--database", database, "--format", form, "--out", out, "select 1 as a, [1, 2] as b")

    if form == "csv":
        assert out.read_text() == '"a","b"\n1,"[1, 2]"\n'
    elif form == "json":
        assert json.loads(out.read_text()) == [{"a": 1, "b": [1, 2]}]
    else:
        table = (
            pyarrow.parquet.read_table(out) if form == "parquet" else pa.ipc.open_stream(out.read_bytes()).read_all()
        )
        assert table.to_pylist() == [{"a": 1, "b": [1, 2]}]


def test_a_cut_result_says_so(database):
    done = entrostat("sql", "--database", database, "--max-rows", "2", "--format", "csv", "select * from range(5)")

    assert len(done.stdout.decode().splitlines()) == 3
    assert "cut after 2 rows" in done.stderr.decode()


def test_a_statement_that_is_not_a_select_is_refused_in_one_line(database):
    done = entrostat("sql", "--database", database, "drop view run", check=False)

    assert done.returncode == 1
    assert done.stderr.decode().startswith("entrostat: ")
    assert "Traceback" not in done.stderr.decode()


def test_a_server_that_is_not_there_is_one_line_with_what_to_do():
    done = entrostat("runs", "list", "--url", "http://127.0.0.1:9", check=False)

    assert done.returncode == 1
    assert "entrostat up" in done.stderr.decode() or "entrostat serve" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_a_run_is_analysed_and_what_cannot_be_said_is_said_so(tmp_path):
    server = Process("entrostat.server", "--data", tmp_path / "data").start("/healthz")
    try:
        FakeRun(server.url, "falls").report(range(1, 61))
        text = entrostat("runs", "analyse", "falls", "--url", server.url, "--reward", "pass_at_1").stdout.decode()
        found = json.loads(entrostat("runs", "analyse", "falls", "--url", server.url, "--json").stdout)
        FakeRun(server.url, "young").report(range(1, 4))
        young = entrostat("runs", "analyse", "young", "--url", server.url).stdout.decode()
    finally:
        server.stop()

    stage, law, forecast = text.splitlines()
    assert stage.startswith("stage: rising")
    assert law.startswith("entropy_law: pass_at_1 = ")
    assert "over 60 points; ceiling" in law
    # exp(-step / 50) is at 0.1 nats at step 50 ln 10 = 115.1
    assert forecast == "entropy_floor_forecast: 0.1 nats at step 116 (116 to 116, 95 %), exponential trend"
    assert found["entropy_floor_forecast"]["step"] == 116
    assert [line.split(": ")[1] for line in young.splitlines()] == ["cannot be said"] * 3


def test_push_of_an_empty_folder_is_no_error(tmp_path):
    assert entrostat("push", tmp_path, "--url", "http://127.0.0.1:9").returncode == 0


def test_doctor_says_what_to_fix(tmp_path):
    done = entrostat("doctor", "--url", "http://127.0.0.1:9", check=False, ENTROSTAT_DIR=str(tmp_path))

    assert done.returncode == 1
    assert "FIX  server" in done.stdout.decode()
    assert "ok  spool" in done.stdout.decode()


def test_a_terminal_is_given_no_orders_by_what_a_run_says(capsys):
    import pyarrow as pa

    from entrostat.cli.output import Format, write

    write(pa.table({"note": ["\x1b]0;owned\x07\x1b[31mred\u009b1m", "two\nlines"]}), Format.table, None)
    printed = capsys.readouterr().out

    assert "\\x1b]0;owned\\x07\\x1b[31mred\\x9b1m" in printed
    assert not set(printed) & {"\x1b", "\x07", "\x9b"}


def test_tokens_are_made_listed_and_revoked(tmp_path):
    from typer.testing import CliRunner

    from entrostat.cli.main import app
    from entrostat.server.auth import Tokens

    path = tmp_path / "tokens.json"

    def told(*words):
        return CliRunner().invoke(app, ["token", *words, "--tokens", str(path)], catch_exceptions=True)

    made = told("add", "anna", "--scope", "read").stdout.strip()
    assert Tokens(path).scopes(made) == {"read"}
    assert "anna  read" in told("list").stdout
    assert made not in told("list").stdout
    assert told("remove", "anna").exit_code == 0
    assert Tokens(path).scopes(made) is None
    assert told("remove", "anna").exit_code == 1
