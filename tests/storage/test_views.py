"""What people read: every column has a meaning, rows add up over ranks, derived columns follow their formulas."""

import math

import numpy as np
import pytest

from entrostat.storage.views import VIEWS
from entrostat.wire.bins import bin_of, edges_of
from entrostat.wire.signals import SIGNALS

TOKEN = {"step": 1, "seq": 0, "pos": 0, "token_id": 7, "logp": -0.5, "entropy": 1.0, "reason": "all", "prob": 1.0}


def test_every_column_has_a_comment_in_the_database(store):
    found = store.write(
        lambda cursor: cursor.execute(
            "select table_name, column_name, comment from duckdb_columns() "
            "where not internal and (schema_name = 'main' or table_name in (select table_name from duckdb_tables()))"
        ).fetchall()
    )

    assert [row for row in found if not row[2]] == []
    assert len(found) > 150


def test_the_schema_names_what_the_views_have(store):
    described = {view["name"]: [c["name"] for c in view["columns"]] for view in store.schema()}

    for view in VIEWS:
        assert store.query(f'select * from "{view.name}"', 1).table.column_names == described[view.name]


def test_the_wide_view_has_a_column_for_each_signal(store):
    columns = store.query("select * from step", 1).table.column_names

    assert columns == ["run", "step", "num_ranks", "world_size", "is_complete", *[s.name for s in SIGNALS]]


def test_histograms_add_up_over_ranks_and_carry_their_edges(produce, ask):
    for rank, count in ((0, 3), (1, 4)):
        produce(rank=rank, world_size=2).send(
            histogram=[{"step": 1, "name": "entropy", "bin": 200, "count": count, "total": count * 0.7}]
        )

    ((bin_, low, high, count, total),) = ask("select bin, low, high, count, total from histogram")
    assert (bin_, low, high, count) == (200, *edges_of(200), 7)
    assert total == pytest.approx(4.9)
    assert int(bin_of(np.array([low]))[0]) == 200


def test_tokens_have_their_scope_score_and_candidates(produce, ask):
    produce(rank=3, world_size=4).send(
        token=[TOKEN | {"advantage": 2.0, "top_logps": [-0.5, -1.5], "top_ids": [7, 8], "rank": 1}]
    )

    ((scope, top1, top3, rank, process_rank),) = ask(
        "select scope, top1_logp, top3_logp, rank, process_rank from token"
    )
    p = math.exp(-0.5)
    assert scope == pytest.approx(p * (1 - p) * 2.0)
    assert (top1, top3, rank, process_rank) == (-0.5, None, 1, 3)


def test_responses_and_events_come_back_as_they_were_sent(produce, ask):
    one = produce()
    one.send(
        sequence=[{"step": 1, "seq": 2, "length": 5, "mean_logp": -1.0, "mean_entropy": 0.5, "ppl": 2.7183}],
        event=[
            {"time": "2026-01-02T03:04:05", "kind": "note", "message": "hello", "detail": '{"a": 1}'},
            {"step": 9, "time": "2026-01-02T03:04:06", "kind": "warning", "message": "nan"},
        ],
    )

    assert ask("select seq, length, reward, producer from sequence") == [(2, 5, None, "trainer")]
    assert ask("select step, kind, detail->>'a' from event order by time") == [
        (None, "note", "1"),
        (9, "warning", None),
    ]


def test_a_run_is_live_then_ended_and_live_again_when_it_resumes(store, produce):
    one = produce()
    one.metric(7, 0.5)
    assert (store.run("r")["status"], store.run("r")["last_step"]) == ("live", 7)
    assert store.run("r")["latest"] == {"entropy_mean": 0.5}
    one.send(event=[{"time": "2020-01-01T00:00:00", "kind": "run_ended", "message": "done"}])
    assert store.run("r")["status"] == "ended"
    produce(session=2, resume_step=5)

    assert (store.run("r")["status"], store.run("r")["last_step"]) == ("live", 5)
