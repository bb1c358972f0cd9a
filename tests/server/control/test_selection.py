"""A selection over the whole step, from the ranks' batches to the answer that the trainer gets."""

import time

import numpy as np
from support.patience import PATIENCE_S

from entrostat.wire.bins import histogram_of

ALLOW = {"mode": "advise", "allow": ["scope"]}


def batch(step, scores):
    bins = [
        {"step": step, "name": "scope_score", "bin": int(i), "count": int(c), "total": float(t)}
        for i, c, t in zip(*histogram_of(scores), strict=True)
    ]
    tokens = {"step": step, "name": "num_tokens", "value": float(scores.size)}
    return {"step_metric": [tokens], "histogram": bins}


def test_an_answer_carries_the_score_that_the_top_share_of_all_ranks_reached(server):
    random = np.random.default_rng(0)
    scores = random.uniform(0.0, 0.25, (2, 500)) * (random.uniform(size=(2, 500)) < 0.5)
    scores[1] *= 2  # the second rank's responses have the larger advantages
    ranks = [server.open("r", stream=k + 1, rank=k, world_size=2, permissions=ALLOW) for k in (0, 1)]
    body = {"because": "b", "person": "anna", "selection": "step", "params": {"q": 0.1}}
    assert server.http.put("/v1/runs/r/interventions/scope", json=body).status_code == 200

    first = server.post(ranks[0], 0, batch(1, scores[0])).json()
    assert first["thresholds"] is None  # half a step
    server.post(ranks[1], 0, batch(1, scores[1]))
    deadline, seq, answer = time.monotonic() + PATIENCE_S, 1, first
    while answer["thresholds"] is None:  # it is made after the commit, off the way of the answers
        assert time.monotonic() < deadline
        answer = server.post(ranks[0], seq, {"step_metric": [{"step": 1, "name": "x", "value": 0.0}]}).json()
        seq += 1

    assert answer["thresholds"]["step"] == 1
    score = answer["thresholds"]["values"]["scope"]
    chosen = scores >= score
    assert abs(chosen.sum() - 100) < 45  # the tokens of one bin
    assert chosen[1].sum() > 2 * chosen[0].sum()
    opened = server.open("r", stream=1, rank=0, world_size=2, permissions=ALLOW)
    assert opened == ranks[0]
    assert server.http.get("/v1/runs/r/control").json()["thresholds"] == answer["thresholds"]
