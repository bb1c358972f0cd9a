"""The log: one line an event, whatever is in it; no token; no more than a disk can take."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrostat.wire import logs
from entrostat.wire.logs import BURST, REFILL_S, JsonFormat, TextFormat, Throttle, event


class Records(logging.Handler):
    def __init__(self, *filters):
        super().__init__()
        self.held = []
        for one in filters:
            self.addFilter(one)

    def emit(self, record):
        self.held.append(record)


def logger_of(handler):
    log = logging.Logger("entrostat.test")
    log.addHandler(handler)
    return log


def record_of(name="batch_refused", level=logging.WARNING, **fields):
    held = Records()
    event(logger_of(held), level, name, **fields)
    return held.held[0]


def test_an_event_is_a_line_of_text():
    line = TextFormat().format(record_of(code="busy", run="my run", duration_s=0.25, left=None))

    assert line.split(" ", 1)[1] == 'WARNING batch_refused logger=entrostat.test code=busy run="my run" duration_s=0.25'
    assert line.split(" ", 1)[0].endswith("Z")


def test_a_librarys_record_has_the_same_shape():
    held = Records()
    logger_of(held).error("cannot %s", "bind")

    document = json.loads(JsonFormat().format(held.held[0]))
    assert document | {"time": ""} == {
        "time": "", "level": "error", "event": "log", "logger": "entrostat.test", "message": "cannot bind",
    }  # fmt: skip


def test_an_exception_is_in_its_line():
    held = Records()
    try:
        raise ValueError("the\nreason")
    except ValueError:
        logger_of(held).exception("it failed")

    for form in (TextFormat(), JsonFormat()):
        line = form.format(held.held[0])
        assert "\n" not in line
        assert "ValueError: the" in line
        assert "test_logs.py" in line


@given(st.dictionaries(st.sampled_from(["run", "path", "message"]), st.text(), min_size=1))
def test_whatever_a_client_sends_an_event_is_one_line_that_can_be_read(fields):
    record = record_of(**fields)

    text, document = TextFormat().format(record), json.loads(JsonFormat().format(record))
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    assert len(JsonFormat().format(record).split("\n")) == 1
    assert document["event"] == "batch_refused"
    assert {key for key in fields if fields[key] is not None} <= set(document)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer es_0123456789abcdefghij",
        "the token es_0123456789abcdefghij is wrong",
        "http://anna:0123456789abcdefghij@host:8321/v1",
        "basic 0123456789abcdefghij",
    ],
)
def test_a_token_is_never_in_a_line(text):
    for form in (TextFormat(), JsonFormat()):
        assert "0123456789abcdefghij" not in form.format(record_of(message=text))
        held = Records()
        logger_of(held).warning("%s", text)
        assert "0123456789abcdefghij" not in form.format(held.held[0])


def test_a_broken_client_cannot_fill_the_disk():
    now = [0.0]
    held = Records(Throttle(clock=lambda: now[0]))
    log = logger_of(held)
    for second in range(int(10 * REFILL_S)):
        now[0] = float(second)
        for _ in range(100):
            event(log, logging.WARNING, "batch_refused", code="malformed_batch")

    left_out = [record.fields.get("left_out", 0) for record in held.held]
    assert len(held.held) == BURST + 9
    assert sum(left_out) + len(held.held) == pytest.approx(100 * 10 * REFILL_S, abs=100 * REFILL_S)


def test_one_kind_does_not_silence_another_and_what_persons_did_is_all_there():
    held = Records(Throttle(clock=lambda: 0.0))
    log = logger_of(held)
    for _ in range(3 * BURST):
        event(log, logging.WARNING, "batch_refused", code="busy")
        event(log, logging.WARNING, "batch_refused", code="malformed_batch")
        event(log, logging.INFO, "control", action="stop_all")

    kinds = [(record.msg, record.fields.get("code")) for record in held.held]
    assert kinds.count(("batch_refused", "busy")) == kinds.count(("batch_refused", "malformed_batch")) == BURST
    assert kinds.count(("control", None)) == 3 * BURST


def test_a_wrong_setting_is_named():
    with pytest.raises(ValueError, match="log_format='xml': must be one of text, json"):
        logs.configure("xml", "info")
    with pytest.raises(ValueError, match="log_level='loud'"):
        logs.configure("text", "loud")
