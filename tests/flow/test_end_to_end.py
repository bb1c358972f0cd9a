"""Trainer to SQL, as users run it: real TRL training, the real server in its own process, a real kill."""

import json
import os
import subprocess
import sys

import pytest
from support import tiny_trl
from support.patience import until
from support.service import Process

import entrostat
from entrostat.wire.client import Client, push


def rows(client, statement):
    return client.sql(statement)[0].to_pylist()


def steps_of(client, run, name="entropy_mean"):
    found = rows(client, f"select step from step_metric where run = '{run}' and name = '{name}' order by step")
    return [row["step"] for row in found]


def test_a_watched_run_can_be_asked_in_sql_while_and_after_it_trains(server, tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", max_steps=6)
    handle = entrostat.attach(trainer, url=server.url, directory=tmp_path / "spool", run="mine", tags={"a": "b"})
    trainer.train()
    client = Client(server.url)

    step = rows(client, "select * from step where run = 'mine' order by step")
    assert [row["step"] for row in step] == [1, 2, 3, 4, 5, 6]
    missing = {name for row in step for name, value in row.items() if value is None}
    absent = rows(client, "select detail from event where run = 'mine' and kind = 'absent'")
    said = {name for row in absent for names in json.loads(row["detail"]).values() for name in names}
    assert {"pass_at_8", "maj_at_8"} <= said  # groups of 4
    # Where every group has equal rewards there is no advantage to speak of; the last step has no next one; no response
    # here has a boxed answer or a word of reflection in it.
    absent_by_nature = {"d_entropy", "entropy_pos", "entropy_neg", "ln_ppl_z_pos", "ln_ppl_z_neg", "scope_mass_top5",
                        "z_bound", "maj_at_2", "maj_at_4", "entropy_logical", "entropy_metacognitive"}  # fmt: skip
    missing -= absent_by_nature | said
    assert missing == set()
    by_tokens = rows(
        client,
        "select step, sum(entropy / prob) / sum(1 / prob) as h from token where run = 'mine' group by 1 order by 1",
    )
    assert [row["h"] for row in by_tokens] == pytest.approx([row["entropy_mean"] for row in step], abs=1e-4)
    assert rows(client, "select count(*) as n from batch where run = 'mine'")[0]["n"] == handle.counters.batches_written
    assert client.run("mine")["tags"] == {"a": "b"}
    assert handle.desired.version == 0
    assert list((tmp_path / "spool").rglob("*.batch")) == []


def test_a_server_killed_in_the_middle_costs_neither_a_step_nor_a_record(server, tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", max_steps=30)
    handle = entrostat.attach(trainer, url=server.url, directory=tmp_path / "spool", run="mine")
    boundary = handle.boundary
    original = boundary.on_step_end

    def on_step_end(args, state, control, **kwargs):
        original(args, state, control, **kwargs)
        if state.global_step == 8:
            until(lambda: handle.counters.batches_acked)  # some arrived before the server dies
            server.kill()
        if state.global_step == 20:
            server.start("/healthz")

    boundary.on_step_end = on_step_end
    trainer.train()
    client = Client(server.url)
    push(tmp_path / "spool", client)

    assert steps_of(client, "mine") == list(range(1, 31))
    tokens = rows(client, "select step, count(*) as n, count(distinct (seq, pos)) as d from token group by step")
    assert all(row["n"] == row["d"] for row in tokens)
    held = rows(client, "select count(*) as n, count(distinct seq) as d, max(seq) as last from batch")[0]
    assert held["n"] == held["d"] == held["last"] + 1 == handle.counters.batches_written


def test_a_run_without_a_server_is_pushed_later(tmp_path):
    trainer = tiny_trl.trainer(tmp_path / "out", max_steps=3)
    entrostat.attach(trainer, url="http://127.0.0.1:9", directory=tmp_path / "spool", run="offline")
    trainer.train()
    server = Process("entrostat.server", "--data", tmp_path / "data").start("/healthz")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "entrostat.cli.main", "push", str(tmp_path / "spool"), "--url", server.url],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert steps_of(Client(server.url), "offline") == [1, 2, 3]
    finally:
        server.stop()


def test_a_resumed_run_shows_each_step_once_with_the_values_of_the_resumed_one(server, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5}
    first = tiny_trl.trainer(tmp_path / "out", **settings)
    entrostat.attach(first, url=server.url, directory=tmp_path / "spool", run="mine")
    first.train()
    client = Client(server.url)
    statement = "select step, entropy_mean, wall_time_s from step where run = 'mine' order by step"
    before = rows(client, statement)

    second = tiny_trl.trainer(tmp_path / "out", **settings)
    entrostat.attach(second, url=server.url, directory=tmp_path / "spool")
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))

    after = rows(client, statement)
    assert [row["step"] for row in after] == [1, 2, 3, 4, 5]
    assert after[:2] == before[:2]
    assert all(new["wall_time_s"] > old["wall_time_s"] for new, old in zip(after[2:], before[2:]))
    tokens = rows(client, "select step, count(*) as n, count(distinct (seq, pos)) as d from token group by step")
    assert all(row["n"] == row["d"] for row in tokens)


@pytest.mark.slow
def test_the_demo_ends_with_what_the_database_says(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "entrostat.cli.main", "demo", "--steps", "40", "--exit", "--no-dashboard", "--data",
         str(tmp_path / "data"), "--port", "0"],
        capture_output=True, text=True, check=False, env=environment, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.strip().splitlines()[-1])

    assert set(outcome) == {
        "run_id", "steps", "token_rows", "entropy_first", "entropy_last", "pass1_first", "pass1_last", "batches_sent",
        "batches_stored", "database",
    }  # fmt: skip
    assert outcome["steps"] == 40
    assert outcome["batches_sent"] == outcome["batches_stored"] > 0
    assert outcome["entropy_last"] < outcome["entropy_first"]
    assert outcome["pass1_last"] > outcome["pass1_first"]
    asked = subprocess.run(
        [sys.executable, "-m", "entrostat.cli.main", "sql", "--database", outcome["database"], "--format", "json",
         "select count(*) as tokens, count(distinct step) as steps from token"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(asked.stdout) == [{"tokens": outcome["token_rows"], "steps": 40}]
