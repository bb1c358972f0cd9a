"""Sessions: what a browser keeps says nothing, cannot be made up, and ends."""

import time

from entrostat.dashboard.sessions import MAX_WRONG, WRONG_S, Attempts, Sessions, Visitor

ANNA = Visitor("es_secret", "anna", frozenset({"read"}))


def test_what_a_browser_keeps_stands_for_its_person_and_tells_nothing():
    sessions = Sessions(100)
    kept = sessions.begin(ANNA)

    assert sessions.visitor(kept) is ANNA
    assert "es_secret" not in kept
    assert "es_secret" not in repr(ANNA)


def test_what_is_forged_cut_or_of_another_dashboard_stands_for_nobody():
    sessions = Sessions(100)
    kept = sessions.begin(ANNA)
    number = kept.split(".")[0]

    for said in (None, "", number, kept[:-1], kept + "x", "x" + kept, Sessions(100).begin(ANNA), "\udcff", "a.b.c"):
        assert sessions.visitor(said) is None


def test_a_session_ends_by_itself_and_by_signing_out():
    brief, sessions = Sessions(0), Sessions(100)
    kept = brief.begin(ANNA)
    time.sleep(1.1)  # the signature's clock counts whole seconds
    assert brief.visitor(kept) is None

    kept = sessions.begin(ANNA)
    sessions.end(kept)
    sessions.end("nothing")
    assert sessions.visitor(kept) is None


def test_wrong_tokens_make_an_address_wait_and_no_other():
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for _ in range(MAX_WRONG):
        assert attempts.wait_s("a") == 0
        attempts.failed("a")
        now[0] += 1

    assert attempts.wait_s("a") == WRONG_S - MAX_WRONG
    assert attempts.wait_s("b") == 0
    now[0] += WRONG_S
    assert attempts.wait_s("a") == 0


def test_who_may_control():
    assert not ANNA.may_control
    assert Visitor("t", "n", frozenset({"admin"})).may_control
