"""Ranks with different numbers of tokens, from the loop through the spool and the store to the view ``step``."""

import numpy as np
import pytest
import torch
from reference import signals_oracle as oracle
from support.padded import NO_SERVER
from support.spool import spooled, values_of
from support.steps import random_step
from support.stored import stored

import entrostat
from entrostat.storage.store import Store

SESSION = "0" * 31 + "1"


def tensors(step):
    width = max(len(r["logp"]) for r in step)
    logits = torch.zeros(len(step), width, step[0]["logits"].shape[1], dtype=torch.float64)
    labels, mask = torch.zeros(len(step), width, dtype=torch.int64), torch.zeros(len(step), width)
    for i, r in enumerate(step):
        n = len(r["logp"])
        logits[i, :n], labels[i, :n], mask[i, :n] = torch.tensor(r["logits"]), torch.tensor(r["ids"]), 1
    return {
        "logits": logits, "labels": labels, "mask": mask,
        "advantages": torch.tensor([r["A"][0] for r in step], dtype=torch.float64),
        "groups": torch.tensor([r["prompt"] for r in step]),
        "rewards": torch.tensor([r["reward"] for r in step], dtype=torch.float64),
    }  # fmt: skip


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Three ranks: the first has short responses with high entropy and advantage, the last long and sure ones."""
    step = random_step(3, num_prompts=9, group=4, longest=12)
    step.sort(key=lambda r: len(r["logp"]))
    for place, r in enumerate(step):
        r["logits"] = r["logits"] * (0.3 + place / 12)
        logps = r["logits"] - np.log(np.exp(r["logits"]).sum(1, keepdims=True))
        r["logp"] = logps[np.arange(len(r["ids"])), r["ids"]].tolist()
        r["entropy"] = (-(np.exp(logps) * logps).sum(1)).tolist()
        r["A"] = [1.5 - place / 12] * len(r["ids"])
        r["reward"] = float(place % 3 == 0)
    shares = [step[:6], step[6:18], step[18:]]
    folder = tmp_path_factory.mktemp("ranks")
    for rank, share in enumerate(shares):
        with entrostat.Probe(
            "three", url=NO_SERVER, directory=folder / str(rank), rank=rank, world_size=3, session_id=SESSION
        ) as probe:
            probe.observe(**tensors(share))
            probe.end_step(1)
    with Store(f"duckdb://{folder / 'three.duckdb'}", linger_s=0.0) as store:
        for rank in range(3):
            stored(folder / str(rank), store)
        row = store.query("select * from step where run = 'three' and step = 1", 10).table.to_pylist()[0]
    alone = [values_of(spooled(folder / str(rank))[0]["step_metric"], 1) for rank in range(3)]
    return row, alone, step, shares


MEANS = {
    "entropy_mean": oracle.entropy_mean,
    "sample_logp": oracle.sample_logp,
    "cov_mean": lambda step: np.mean(oracle.cov_tokens(step)),
    "scope_score": lambda step: np.mean(oracle.scope_scores(step)),
    "ppl": oracle.ppl,
    "reward_std": oracle.reward_std,
    "length_mean": lambda step: np.mean([len(r["logp"]) for r in step]),
}


@pytest.mark.parametrize("name", MEANS)
def test_the_view_has_the_value_of_all_ranks_tokens_and_not_the_mean_of_the_ranks_values(ranks, name):
    row, alone, step, shares = ranks
    of_ranks = [values[name] for values in alone]
    assert of_ranks == pytest.approx([MEANS[name](share) for share in shares], rel=1e-9)

    assert row[name] == pytest.approx(MEANS[name](step), rel=1e-9)
    assert row[name] != pytest.approx(np.mean(of_ranks), rel=2e-3)


def test_the_covariance_is_not_even_the_tokens_mean_of_the_ranks_covariances(ranks):
    row, alone, step, _ = ranks
    tokens = [values["num_tokens"] for values in alone]

    weighted = np.average([values["cov_mean"] for values in alone], weights=tokens)

    assert row["cov_mean"] == pytest.approx(np.mean(oracle.cov_tokens(step)), rel=1e-9)
    assert row["cov_mean"] != pytest.approx(weighted, rel=0.05)


def test_a_rank_without_positive_tokens_counts_nothing_rather_than_zero(ranks):
    row, alone, step, _ = ranks
    of_ranks = [values["entropy_pos"] for values in alone]

    assert of_ranks[2] is None
    assert row["entropy_pos"] == pytest.approx(oracle.entropy_mean(step, sign=1), rel=1e-9)
    assert row["entropy_pos"] != pytest.approx(np.mean([x or 0.0 for x in of_ranks]), rel=0.05)
    assert row["entropy_pos"] != pytest.approx(np.mean(of_ranks[:2]), rel=2e-3)
