"""A small run with rows in every table: two ranks, a resumed session, a rollout engine, rules and a person."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from entrostat.storage.rule_book import ServerEvent
from entrostat.storage.rules import HeldState
from entrostat.wire.bins import MAX_BIN
from entrostat.wire.messages import ActiveIntervention, Permissions, StreamOpen
from entrostat.wire.tables import TABLES

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
STREAMS = (  # number, session, rank, producer, first step, last step, resumed from
    (1, 1, 0, "trainer", 0, 9, None),
    (2, 1, 1, "trainer", 0, 9, None),
    (3, 1, 0, "rollout", 0, 9, None),
    (4, 2, 0, "trainer", 7, 12, 6),
    (5, 2, 1, "trainer", 7, 12, 6),
)
METHOD = {"name": "scope", "params": {"q": 0.05}, "because": "it fell", "by": "person:anna"}


def stream_id(number, run="full"):
    return f"{sum(map(ord, run)):016x}{number:016x}"


def opening(run, number, session, rank, producer, resume_step):
    return StreamOpen(
        run_id=run, session_id=stream_id(100 + session, run), rank=rank, world_size=2 if producer == "trainer" else 1,
        producer=producer, resume_step=resume_step, started=BEGAN + timedelta(seconds=session), host="node-1",
        pid=4000 + number, trainer="trl.GRPOTrainer", git_commit="abc", tags={"model": "tiny 0.5"},
        config={"lr": 1e-6, "note": "π"}, versions={"torch": "2"}, settings={"baseline_steps": 3},
        permissions=Permissions(mode="act", allow=["scope"]),
    )  # fmt: skip


def batch(random, steps, rank):
    """Tables of some steps as a rank would send them; every column has values, and nulls where it may."""
    return {
        "step_metric": _table("step_metric", [
            {"step": s, "name": name, "merge": merge, "state": [float(v) for v in random.random(length) + 1]}
            for s in steps
            for name, merge, length in (("entropy_mean", "mean", 2), ("num_tokens", "sum", 1), ("kl", "std", 3))
        ]),
        "histogram": _table("histogram", [
            {"step": s, "name": name, "bin": int(b), "count": int(random.integers(1, 50)), "total": float(b)}
            for s in steps for name in ("entropy", "cov_token") for b in random.choice(MAX_BIN, 6, replace=False)
        ]),
        "profile": _table("profile", [
            {"step": s, "name": "entropy_by_position", "bin": b, "count": 3, "total": random.random()}
            for s in steps for b in range(4)
        ]),
        "cell": _table("cell", [
            {"step": s, "cell": c, "count": 5, "sum_logp": -random.random(), "sum_advantage": random.random(),
             "sum_product": random.random()} for s in steps for c in range(3)
        ]),
        "sequence": _table("sequence", [_sequence(random, s, k, rank) for s in steps for k in range(4)]),
        "token": _table("token", [_token(random, s, k, pos) for s in steps for k in range(4) for pos in range(5)]),
        "event": _table("event", [
            {"step": steps[0], "time": BEGAN.replace(tzinfo=None), "kind": "note", "message": f"rank {rank} 'says'",
             "detail": json.dumps({"x": 1})},
            {"step": None, "time": BEGAN.replace(tzinfo=None), "kind": "note", "message": "no step", "detail": None},
        ]),
    }  # fmt: skip


def _table(name, rows):
    return pa.Table.from_pylist(rows, schema=TABLES[name])


def _sequence(random, step, k, rank):
    row = {
        "step": step, "seq": k, "prompt": k // 2 + 10 * rank, "length": 5, "truncated": bool(k % 2),
        "reward": float(k % 2), "advantage": random.normal(), "mean_logp": -random.random(),
        "mean_entropy": random.random(), "ppl": 1 + random.random(), "completion": int(random.integers(2**60)),
        "answer": None if k == 0 else k, "format_violation": None, "language_mixing": False, "repetition": True,
    }  # fmt: skip
    return {name: row.get(name) for name in TABLES["sequence"].names}


def _token(random, step, k, pos):
    has_candidates = pos % 2 == 0
    row = {
        "step": step, "seq": k, "pos": pos, "token_id": int(random.integers(150_000)), "logp": -random.exponential(),
        "entropy": random.exponential(), "advantage": random.normal(), "cov": random.normal(), "ratio": 1.0,
        "rank": pos + 1, "sum_p2": random.random(), "support95": 9, "self_certainty": random.random(),
        "logsumexp": random.normal(), "top_ids": [5, 6, 7] if has_candidates else None,
        "top_logps": [-0.1, -1.0, -2.0] if has_candidates else [], "category": "logical", "text": f"wört{pos}",
        "reason": "uniform", "prob": 0.25,
    }  # fmt: skip
    return {name: row.get(name) for name in TABLES["token"].names}


def send(open_stream, post, run="full", seed=0):
    """Open the run's streams and send their batches, two steps each."""
    random = np.random.default_rng(seed)
    for number, session, rank, producer, first, last, resume_step in STREAMS:
        open_stream(stream_id(number, run), opening(run, number, session, rank, producer, resume_step))
        for seq, step in enumerate(range(first, last + 1, 2)):
            tables = batch(random, [step, min(step + 1, last)][: 1 + (step < last)], rank)
            post(stream_id(number, run), seq, tables)


def fill(store, run="full", seed=0):
    """The run in a store, with what persons and rules did."""
    send(store.open_stream, lambda *at: store.add_batch(*at, num_bytes=1000).result(60), run, seed)
    store.update_run(run, notes="a person's 'notes'")
    wanted = store.change_desired(
        run, lambda state: state.model_copy(update={"interventions": [ActiveIntervention.model_validate(METHOD)]})
    )
    store.rules.commit(
        run,
        wanted.version,
        wanted.model_copy(update={"is_armed": False}),
        [HeldState("guard", 1, 12, '{"step": 12}')],
        [ServerEvent(12, "rule", "guard fired", {"value": 0.5})],
    )
    return run
