"""The sender: it never waits, and what it accepted arrives, once, in order, or is counted."""

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pyarrow as pa
import pytest
from support.patience import PATIENCE_S, until
from support.sent import spooled_steps, token_rows

from entrostat.wire import journal, uplink
from entrostat.wire.client import Client, push
from entrostat.wire.codec import decode
from entrostat.wire.spool import SpoolStream, pending_streams
from entrostat.wire.tables import EVENT

# --- what arrives


def test_steps_arrive_in_order_and_leave_no_trace_on_disk(server, make_sender, step, tmp_path):
    sender = make_sender(server.url)
    for number in range(50):
        sender.put(step(number), 100)
    assert sender.flush(PATIENCE_S)
    assert server.steps() == list(range(50))
    counts = sender.counters
    assert counts.batches_written == counts.batches_acked == len(server.store)
    assert counts.bytes == sum(len(body) for body in server.store.values())
    assert (counts.queue_bytes, counts.spool_bytes, counts.dropped_items, counts.duplicates) == (0, 0, 0, 0)
    sender.close()
    assert os.listdir(tmp_path / "spool") == []


def test_what_comes_within_the_linger_goes_in_one_batch(server, make_sender, step):
    sender = make_sender(server.url, linger_s=0.3)
    for number in range(5):
        sender.put(step(number), 100)
    until(lambda: server.store)
    assert len(server.store) == 1
    assert server.steps() == [0, 1, 2, 3, 4]


def test_batches_are_numbered_from_0_without_a_gap(server, make_sender, step):
    sender = make_sender(server.url, linger_s=0.0)
    for number in range(10):
        sender.put(step(number), 100)
        time.sleep(0.01)
    assert sender.flush(PATIENCE_S)
    assert server.seqs() == list(range(len(server.store)))
    assert len(server.store) > 1


def test_a_step_of_many_tokens_is_cut_into_batches_that_a_server_takes(server, make_sender, metric, monkeypatch):
    rows = token_rows(1000)
    monkeypatch.setattr(journal, "MAX_STEP_BYTES", rows.nbytes // 4 + 1)
    sender = make_sender(server.url)
    sender.put(lambda: {"token": rows, "step_metric": metric(1)}, 100)
    assert sender.flush(PATIENCE_S)
    bodies = [decode(body) for _, body in sorted(server.store.items())]
    assert [b["token"].num_rows for b in bodies] == [250] * 4
    assert ["step_metric" in b for b in bodies] == [False, False, False, True], (
        "a step is complete when its values come"
    )


def test_a_kill_between_two_batches_finds_every_step_on_disk(make_sender, metric, tmp_path, monkeypatch):
    """A step is part of one batch: of what was one tail, a kill behind the first of several would leave that one."""
    rows, left = token_rows(100), []
    monkeypatch.setattr(journal, "MAX_BATCH_BYTES", int(3.5 * rows.nbytes))
    write = SpoolStream.write

    def and_look(stream, seq, body):
        write(stream, seq, body)
        copy = tmp_path / f"killed-{seq}"
        shutil.copytree(stream.path, copy)  # as a kill would leave it now
        killed = SpoolStream.adopt(copy)
        left.append([decode(killed.read(seq)) for seq, _ in killed.pending()])
        killed.release()

    monkeypatch.setattr(SpoolStream, "write", and_look)
    sender = make_sender(None, linger_s=60.0)
    for number in range(10):
        sender.put(lambda n=number: {"token": token_rows(100, n), "step_metric": metric(n)}, 100)
    sender.close(0.0)

    assert len(left) > 2
    assert [len(batches) for batches in left] == list(range(1, len(left) + 1))
    for batches in left:
        steps = [step for batch in batches for step in batch["step_metric"]["step"].to_pylist()]
        assert steps == list(range(len(steps)))
        for batch in batches:
            assert set(batch["token"]["step"].to_pylist()) == set(batch["step_metric"]["step"].to_pylist())
            assert batch["token"].num_rows == 100 * batch["step_metric"].num_rows
    assert len(steps) == 10


@pytest.mark.parametrize("seed", range(4))
def test_lost_requests_and_lost_answers_store_every_batch_exactly_once(server, make_sender, step, seed):
    chance = random.Random(seed)
    server.script.extend(chance.choices(["ok", "lost_request", "lost_ack", "503", "500", "404"], k=15))
    num_lost_acks = server.script.count("lost_ack")
    sender = make_sender(server.url, linger_s=0.0)
    for number in range(30):
        sender.put(step(number), 100)
        time.sleep(0.002)
    assert sender.flush(PATIENCE_S)
    assert server.steps() == list(range(30))
    assert server.seqs() == list(range(sender.counters.batches_written))
    assert sender.counters.duplicates <= num_lost_acks
    assert sender.counters.rejected == 0


def test_a_lost_answer_shows_as_a_duplicate(server, make_sender, step):
    server.script.append("lost_ack")
    sender = make_sender(server.url)
    sender.put(step(1), 100)
    assert sender.flush(PATIENCE_S)
    assert (sender.counters.duplicates, sender.counters.batches_acked) == (1, 1)
    assert sender.counters.retries >= 1


def test_a_server_that_comes_late_gets_everything_in_order(server, make_sender, step, tmp_path, caplog):
    server.stop()
    sender = make_sender(server.url, linger_s=0.0)
    for number in range(10):
        sender.put(step(number), 100)
        time.sleep(0.01)
    assert not sender.flush(0.3)
    until(lambda: spooled_steps(tmp_path) == list(range(10)))
    server.start()
    assert sender.flush(PATIENCE_S)
    assert server.steps() == list(range(10))
    assert len([r for r in caplog.records if "no entrostat server answers" in r.message]) == 1


def test_a_server_that_forgot_the_stream_is_told_again(server, make_sender, step):
    sender = make_sender(server.url)
    sender.put(step(1), 100)
    assert sender.flush(PATIENCE_S)
    server.streams.clear()
    sender.put(step(2), 100)
    assert sender.flush(PATIENCE_S)
    assert server.steps() == [1, 2]
    assert list(server.streams) == [sender.stream_id]


def test_two_senders_of_one_run_do_not_meet(server, make_sender, step, tmp_path):
    senders = [make_sender(server.url) for _ in range(2)]
    for number, sender in enumerate(senders):
        sender.put(step(number), 100)
    assert all(sender.flush(PATIENCE_S) for sender in senders)
    assert [server.steps(s.stream_id) for s in senders] == [[0], [1]]


# --- what the server says


def test_retry_after_is_honoured(server, make_sender, step, monkeypatch):
    monkeypatch.setattr("entrostat.wire.retry.LONGEST_WAIT_S", 30.0)
    server.headers, server.script = {"Retry-After": "1"}, type(server.script)(["503"])
    sender = make_sender(server.url)
    start = time.monotonic()
    sender.put(step(1), 100)
    assert sender.flush(PATIENCE_S)
    assert time.monotonic() - start >= 1.0


@pytest.mark.parametrize("status", ["422", "413"])
def test_a_refused_batch_is_kept_aside_and_the_next_goes_on(server, make_sender, step, tmp_path, status):
    sender = make_sender(server.url)
    server.script.extend([status])
    for number in (1, 2, 3):
        sender.put(step(number), 100)
        assert sender.flush(PATIENCE_S)
    assert server.steps() == [2, 3]
    assert sender.counters.rejected == 1
    [event] = [e for e in server.events() if e["kind"] == "warning"]
    assert (event["detail"]["seq"], event["detail"]["status"]) == (0, int(status))
    [reason] = (tmp_path / "spool").rglob("*.reason.json")
    assert f"no: {status}" in reason.read_text()
    assert spooled_steps(reason.parent) == [1]


def test_a_server_that_refuses_everything_is_not_answered_with_a_flood_of_events(server, make_sender, step):
    server.script.extend(["422"] * 100)
    sender = make_sender(server.url, linger_s=0.0)
    for number in range(5):
        sender.put(step(number), 100)
        assert sender.flush(PATIENCE_S)
    assert sender.flush(PATIENCE_S)
    assert sender.counters.rejected == sender.counters.batches_written <= 6


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_said_once_with_what_to_set(server, make_sender, step, caplog, status):
    server.open_status = status
    sender = make_sender(server.url)
    sender.put(step(1), 100)
    until(lambda: sender.counters.retries >= 2)
    assert len([r for r in caplog.records if "ENTROSTAT_TOKEN" in r.message]) == 1
    server.open_status = 200
    assert sender.flush(PATIENCE_S)


def test_the_token_is_sent(server, make_sender, step):
    sender = make_sender(server.url, token="secret\n")
    sender.put(step(1), 100)
    assert sender.flush(PATIENCE_S)
    assert {headers["Authorization"] for _, _, headers, _ in server.requests} == {"Bearer secret"}


def test_a_server_that_is_too_old_is_left_alone_and_the_spool_grows(server, make_sender, step, tmp_path, caplog):
    server.script.append("426")
    sender = make_sender(server.url)
    sender.put(step(1), 100)
    until(lambda: server.script == type(server.script)())
    start = time.monotonic()
    sender.put(step(2), 100)
    assert not sender.flush(PATIENCE_S)
    assert time.monotonic() - start < PATIENCE_S / 2, "there is nothing to wait for"
    assert server.steps() == []
    assert spooled_steps(tmp_path) == [1, 2]
    assert len([r for r in caplog.records if "Update entrostat on the server" in r.message]) == 1


def test_what_should_be_on_comes_back_with_every_answer(server, make_sender, step):
    server.run_id = "run-2"
    server.desired = {"version": 1, "interventions": [{"name": "scope", "params": {"q": 0.05}, "because": "a rule"}]}
    sender = make_sender(server.url)
    until(lambda: sender.desired.version == 1)
    assert sender.run_id == "run-2"
    server.desired = {"version": 2, "interventions": []}
    sender.put(step(1), 100)
    assert sender.flush(PATIENCE_S)
    assert sender.desired.version == 2


def test_an_idle_sender_asks_what_should_be_on(server, make_sender, monkeypatch):
    monkeypatch.setattr(uplink, "POLL_EVERY_S", 0.1)
    sender = make_sender(server.url)
    until(lambda: server.streams)
    server.desired = {"version": 5, "interventions": []}
    until(lambda: sender.desired.version == 5)
    assert any(path == "/v1/runs/run/desired" for _, path, _, _ in server.requests)


def test_an_answer_that_is_not_an_acknowledgement_deletes_nothing(server, make_sender, step, tmp_path):
    server.desired = "not a document"
    sender = make_sender(server.url)
    sender.put(step(1), 100)
    assert not sender.flush(0.5)
    until(lambda: spooled_steps(tmp_path) == [1])


def test_while_batches_wait_for_the_server_the_next_ones_grow(server, make_sender, step):
    server.script.extend(["hang"] * 100)
    sender = make_sender(server.url, linger_s=1.0)
    for number in range(3):
        sender.put(step(number), 100)
        assert not sender.flush(0.2)  # written, and not taken
    until(lambda: sender.counters.batches_written == 3)
    sender.put(step(3), 100)
    time.sleep(2.5)
    assert sender.counters.batches_written == 3, "nobody waits for it"
    server.script.clear()
    server.let_go.set()
    assert sender.flush(PATIENCE_S)
    assert server.steps() == [0, 1, 2, 3]


# --- what the trainer feels


def test_put_never_waits_while_the_server_hangs(server, make_sender, step):
    server.script.extend(["hang"] * 1000)
    sender = make_sender(server.url, linger_s=0.01, max_queue_bytes=20_000)

    slowest = 0.0
    for number in range(300):
        start = time.perf_counter()
        sender.put(step(number), 100)
        slowest = max(slowest, time.perf_counter() - start)
        time.sleep(0.0005)

    assert slowest < 2.0, "a put that waits for the server waits until the test lets it go"


def test_a_full_queue_drops_and_the_event_has_the_exact_counts(server, make_sender, step):
    gate, entered = threading.Event(), threading.Event()
    sender = make_sender(server.url, max_queue_bytes=1000)

    def slow():
        entered.set()
        gate.wait(30)
        return step(0)()

    sender.put(slow, 100)
    assert entered.wait(10)
    for number in range(1, 20):
        sender.put(step(number), 100, token_rows=7)
    sender.put(step(99), 50, what="note")
    assert sender.counters.queue_bytes == 1000
    gate.set()
    assert sender.flush(PATIENCE_S)
    assert server.steps() == list(range(10))
    dropped = [e["detail"] for e in server.events() if e["kind"] == "dropped"]
    total = {key: sum(d[key] for d in dropped) for key in ("items", "steps", "token_rows", "bytes")}
    assert total == {"items": 11, "steps": 10, "token_rows": 70, "bytes": 1050}
    assert {d["reason"] for d in dropped} == {"queue_full"}
    assert (sender.counters.dropped_items, sender.counters.dropped_token_rows) == (11, 70)


def test_a_reduce_that_fails_is_one_warning_and_a_count(server, make_sender, step):
    sender = make_sender(server.url)
    for number in range(6):
        sender.put(step(number) if number % 2 else lambda: 1 / 0, 100)
    assert sender.flush(PATIENCE_S)
    assert server.steps() == [1, 3, 5]
    [warning] = [e for e in server.events() if e["kind"] == "warning"]
    assert "ZeroDivisionError: division by zero" in warning["message"]
    sender.close()
    assert sender.counters.failed_items == 3
    assert server.events()[-1]["detail"] == {"times": 3}


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (lambda: {"run": EVENT.empty_table()}, "unknown table"),
        (lambda: {"event": pa.table({"kind": ["a"]})}, "step"),
        (lambda: None, "NoneType"),
    ],
)
def test_rows_that_are_not_as_agreed_do_not_cost_the_batch(server, make_sender, step, tables, words):
    sender = make_sender(server.url)
    sender.put(step(1), 100)
    sender.put(tables, 100)
    assert sender.flush(PATIENCE_S)
    assert server.steps() == [1]
    assert words in server.events()[0]["message"]


# --- the end


def test_without_a_server_it_spools_and_says_how_to_push(make_sender, step, server, tmp_path, caplog):
    sender = make_sender(None)
    sender.put(step(1), 100)
    assert not sender.flush(PATIENCE_S)
    sender.close()
    assert [r for r in caplog.records if "entrostat push" in r.message and r.levelno == logging.WARNING]
    with Client(server.url) as client:
        report = push(tmp_path / "spool", client)
    assert (report.num_sent, report.problems) == (1, [])
    assert server.steps() == [1]


def test_close_drains_to_disk_says_where_and_can_be_repeated(make_sender, step, server, tmp_path, caplog):
    server.stop()
    sender = make_sender(server.url, linger_s=10.0)
    for number in range(100):
        sender.put(step(number), 100)
    start = time.monotonic()
    sender.close(0.2)
    sender.close(0.2)
    assert time.monotonic() - start < 10, "nobody waits for the linger at the end"
    assert spooled_steps(tmp_path) == list(range(100))
    assert "1 batches wait in" in caplog.text
    sender.put(step(1), 100)
    assert sender.counters.dropped_items == 1


def test_push_leaves_a_live_stream_alone(make_sender, step, server, tmp_path):
    sender = make_sender(None)
    sender.put(step(1), 100)
    sender.flush(PATIENCE_S)
    with Client(server.url) as client:
        report = push(tmp_path / "spool", client)
        assert (report.num_live, report.num_sent, server.store) == (1, 0, {})
        sender.close()
        assert push(tmp_path / "spool", client).num_sent == 1


_CHILD = """
import sys, time, pathlib
from datetime import UTC, datetime
import pyarrow as pa
from entrostat.wire.messages import StreamOpen
from entrostat.wire.sender import Sender
from entrostat.wire.tables import STEP_METRIC

opening = StreamOpen(run_id="run", session_id="a" * 32, started=datetime.now(UTC))
sender = Sender(opening, url=None, token=None, root=pathlib.Path(sys.argv[1]), linger_s=0.0)
def rows(n):
    return lambda: {"step_metric": pa.Table.from_pylist(
        [{"step": n, "name": "x", "merge": "last", "state": [1.0]}], schema=STEP_METRIC)}
"""


def child(root, code):
    script = _CHILD + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE, text=True)


def test_after_kill_9_what_was_spooled_is_whole_and_push_delivers_it(server, tmp_path):
    process = child(
        tmp_path,
        """
        for n in range(100_000):
            sender.put(rows(n), 100)
            if n % 10 == 0:
                print(sender.counters.batches_written, flush=True)
            time.sleep(0.001)
        """,
    )
    written = 0
    while written < 50:
        written = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    [found] = pending_streams(tmp_path)
    assert not found.is_live
    assert found.num_batches >= written
    with Client(server.url) as client:
        report = push(tmp_path, client)
    assert report.num_sent == found.num_batches
    assert server.seqs() == list(range(found.num_batches))
    assert server.steps() == list(range(len(server.steps())))
    assert os.listdir(tmp_path) == []


def test_the_end_of_the_program_is_a_close(tmp_path):
    process = child(tmp_path, "for n in range(100): sender.put(rows(n), 100)")
    process.communicate(timeout=200)
    assert process.returncode == 0
    assert spooled_steps(tmp_path) == list(range(100))


def test_a_forked_child_neither_hangs_nor_writes_nor_keeps_the_lock(tmp_path):
    process = child(
        tmp_path,
        """
        import os
        sender.put(rows(0), 100)
        sender.flush(90)
        pid = os.fork()
        if pid == 0:
            sender.put(rows(1), 100)
            print(sender.counters.dropped_items, sender.flush(5), flush=True)
            sender.close()
            sys.exit(0)  # runs atexit, as a forked worker may
        assert os.waitpid(pid, 0)[1] == 0
        if os.fork() == 0:
            os.close(1)
            time.sleep(3)
            os._exit(0)
        os._exit(0)
        """,
    )
    out, _ = process.communicate(timeout=200)
    assert out.split() == ["1", "False"]
    [found] = pending_streams(tmp_path)
    assert not found.is_live, "a child that lives on must not hold its dead parent's stream"
    assert spooled_steps(tmp_path) == [0]
