"""Pieces of pages: functions of what the server said."""

from entrostat.dashboard.pages.parts import removed


def test_the_status_line_says_that_token_rows_were_removed():
    assert removed({"tokens_removed": None}) == ""
    assert removed({"tokens_removed": "2026-11-21T10:00:00+00:00"}) == " · token rows removed 2026-11-21 (events)"
