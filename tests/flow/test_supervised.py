"""Supervised training to SQL, as users run it: the example, the real server in its own process."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import supervised_ranks
from support.service import Process, free_port

from entrostat.wire.client import Client

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Process("entrostat.server", "--data", tmp_path_factory.mktemp("data"))
    yield made.start("/healthz")
    made.stop()


def example():
    spec = importlib.util.spec_from_file_location("sft_trl", ROOT / "examples" / "sft_trl.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_sft_run_shows_entropy_and_perplexity_in_sql_and_says_what_it_cannot_have(server, tmp_path, monkeypatch):
    monkeypatch.setenv("ENTROSTAT_DIR", str(tmp_path / "spool"))
    monkeypatch.setenv("ENTROSTAT_URL", server.url)

    run = example().main(steps=12)

    client = Client(server.url)

    def rows(statement):
        return client.sql(statement)[0].to_pylist()

    step = rows(f"select * from step where run = '{run}' order by step")
    assert [row["step"] for row in step] == list(range(1, 13))
    assert step[-1]["ppl"] < step[0]["ppl"]
    assert step[-1]["entropy_mean"] < step[0]["entropy_mean"]
    seen = ("entropy_mean", "entropy_p10", "entropy_p90", "sample_logp", "ppl", "rank_logp_1", "rank_logp_3",
            "top1_rate", "support95_mean", "length_mean", "share_formal", "num_tokens", "d_collapse")  # fmt: skip
    assert [name for name in seen if step[-1].get(name) is None] == []
    unseen = ("reward_mean", "cov_mean", "pass_at_1", "zero_variance_groups", "approx_kl", "entropy_pos")
    assert [name for name in unseen if step[-1][name] is not None] == []
    said = rows(f"select detail from event where run = '{run}' and kind = 'absent'")
    names = {name for row in said for found in json.loads(row["detail"]).values() for name in found}
    assert set(unseen) <= names

    tokens = rows(
        f"select sum(entropy / prob) / sum(1 / prob) h, count(*) n from token where run = '{run}' group by step"
    )
    assert sorted(row["h"] for row in tokens) == pytest.approx(sorted(row["entropy_mean"] for row in step), abs=1e-4)
    assert rows(f"select count(*) n from profile where run = '{run}' and name = 'entropy_by_position'")[0]["n"] > 0
    assert client.run(run)["trainer"] == "trl.SFTTrainer"


def test_two_ranks_of_half_the_texts_are_the_run_of_one(server, tmp_path):
    supervised_ranks.train(tmp_path / "one", server.url, "one", 4)
    launcher = [sys.executable, "-P", "-m", "torch.distributed.run", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launcher, f"--master_port={free_port()}", supervised_ranks.__file__, str(tmp_path), server.url, "two", "2"],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    values = {}
    for run in ("one", "two"):
        statement = f"select * from step where run = '{run}' order by step"
        values[run] = Client(server.url).sql(statement)[0].to_pylist()

    assert [row["step"] for row in values["two"]] == [1, 2, 3]
    for name in ("entropy_mean", "entropy_p50", "sample_logp", "ppl", "rank_logp_1", "top1_rate", "length_mean",
                 "num_responses", "num_tokens", "share_formal"):  # fmt: skip
        one, two = ([row[name] for row in values[run]] for run in ("one", "two"))
        assert two == pytest.approx(one, rel=1e-4), name
    assert values["one"][0]["num_responses"] == 4
    assert values["one"][0]["ppl"] != pytest.approx(values["one"][2]["ppl"], rel=1e-2)
