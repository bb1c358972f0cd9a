"""Events of the server's own stand beside those of the producers."""

import pytest

from entrostat.wire.errors import NotFound

SENT = {"step": 3, "time": "2026-01-01T00:00:00", "kind": "note", "message": "from the trainer"}


def test_an_event_of_the_server_is_in_the_view_and_in_the_runs_list(store, produce, ask):
    produce().send(event=[SENT])
    store.add_event("r", 7, "rule_fired", "the entropy falls", {"values": {"entropy_mean": float("inf")}})

    rows = ask("select producer, process_rank, step, kind, message from event order by step")
    assert rows == [
        ("trainer", 0, 3, "note", "from the trainer"), ("server", None, 7, "rule_fired", "the entropy falls")
    ]  # fmt: skip
    assert [e["detail"] for e in store.events("r") if e["kind"] == "rule_fired"] == [{"values": {"entropy_mean": None}}]


def test_it_stays_when_a_session_resumes_from_an_earlier_step(store, produce, ask):
    produce().metric(9, 1.0)
    store.add_event("r", 9, "asked", "by hand")
    produce(session=2, resume_step=2)

    assert ask("select step, kind from event") == [(9, "asked")]


def test_it_goes_with_the_run_and_needs_one(store, produce, ask):
    produce()
    store.add_event("r", None, "asked", "by hand")
    store.delete_run("r")

    assert ask("select count(*) from event") == [(0,)]
    with pytest.raises(NotFound):
        store.add_event("r", None, "asked", "by hand")
