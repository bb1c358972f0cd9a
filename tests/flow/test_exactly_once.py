"""Whatever happens to network, disk, clock, probe and server: what was accepted is stored, once, or counted as lost.

Real probes, a real server and a real spool, each process killed for real; the network between them and the disk under
the probes do what hypothesis makes up (tests/support/forked.py, faulty_network.py). ``make faults`` makes up more.
"""

import json
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.faults import FAULTS
from support.faulty_network import WAYS, FaultyNetwork
from support.forked import Probe, Server, restored
from support.patience import PATIENCE_S
from support.service import free_port

from entrostat.wire.client import Client, push

A_MOMENT = st.sampled_from([0.0, 0.02, 0.05, 0.1])
"""Until a kill: what was just put is on its way then."""


@dataclass
class Put:
    """A step as it was put."""

    num_tokens: int
    outlives: bool
    while_disk_was_full: bool


@dataclass
class Told:
    """A probe, and what it was told to record."""

    probe: Probe
    is_roomy: bool
    puts: dict[int, Put] = field(default_factory=dict)
    is_disk_full: bool = False
    was_killed: bool = False
    counters: object = None

    @property
    def is_running(self):
        return not self.was_killed and self.counters is None


class Telemetry(RuleBasedStateMachine):
    """Up to three probes of three runs, one server."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="entrostat-")
        self.root = Path(self.folder.name)
        self.server = Server(self.root / "data", free_port(), max_queue_mb=1)
        self.is_up = False
        self.network = FaultyNetwork(self.server.port)
        self.probes = []
        self.step = 0

    @property
    def running(self):
        return [told for told in self.probes if told.is_running]

    @initialize()
    def begin(self):
        self.server.start(commit_s=0.05)
        self.is_up = True
        self.start_probe(True, 0.0)

    @precondition(lambda self: len(self.probes) < 3)
    @rule(is_roomy=st.booleans(), linger_s=st.sampled_from([0.0, 0.05]))
    def start_probe(self, is_roomy, linger_s):
        limits = {} if is_roomy else {"max_queue_bytes": 3000, "max_spool_bytes": 2000}
        name = f"run-{len(self.probes)}"
        probe = Probe(self.root / "spool", self.network.url, name, linger_s=linger_s, **limits)
        self.probes.append(Told(probe, is_roomy))

    @precondition(lambda self: self.running)
    @rule(count=st.integers(1, 8), num_tokens=st.integers(0, 40), is_handed_over=st.booleans())
    def put(self, count, num_tokens, is_handed_over):
        for told in self.running:
            for _ in range(count):
                self.step += 1
                outlives = told.probe.ask("put", self.step, num_tokens, is_handed_over)
                told.puts[self.step] = Put(num_tokens, outlives, told.is_disk_full)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def flush(self, data):
        data.draw(st.sampled_from(self.running)).probe.ask("flush", 0.3)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_handed_over=st.booleans(), later_s=A_MOMENT)
    def kill_probe(self, data, is_handed_over, later_s):
        told = data.draw(st.sampled_from(self.running))
        self.put(3, 5, is_handed_over)
        time.sleep(later_s)
        told.probe.kill()
        told.was_killed = True

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fill_or_clear_a_disk(self, data):
        told = data.draw(st.sampled_from(self.running))
        told.is_disk_full = not told.is_disk_full
        told.probe.ask("disk", "full" if told.is_disk_full else "roomy")

    @rule(faults=st.lists(st.sampled_from(WAYS), min_size=1, max_size=6), is_handed_over=st.booleans())
    def disturb_the_network(self, faults, is_handed_over):
        self.network.faults.extend(faults)
        self.put(2, 5, is_handed_over)

    @precondition(lambda self: self.is_up)
    @rule(seed=st.integers(0, 9))
    def deliver_late(self, seed):
        self.network.repeat(random.Random(seed))

    @precondition(lambda self: self.is_up)
    @rule(later_s=A_MOMENT, at_an_answer=st.booleans())
    def kill_server(self, later_s, at_an_answer):
        num_acked, deadline = len(self.network.acked), time.monotonic() + 1.0
        self.put(3, 5, False)
        while at_an_answer and len(self.network.acked) == num_acked and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.0 if at_an_answer else later_s)
        self.server.kill()
        self.is_up = False

    @precondition(lambda self: not self.is_up)
    @rule(clock_s=st.sampled_from([0.0, -3e6, 3e6]), commit_s=st.sampled_from([0.0, 0.05]))
    def start_server(self, clock_s, commit_s):
        self.server.start(clock_s, commit_s)
        self.is_up = True

    @rule()
    def push_what_the_dead_left(self):
        with Client(self.network.url) as client:
            push(self.root / "spool", client, patience_s=0.3, restore=restored)

    @invariant()
    def nobody_died_of_it(self):
        assert all(told.probe.process.is_alive() for told in self.running)
        assert not self.is_up or self.server.process.is_alive()

    def teardown(self):
        try:
            if self.probes:
                self.heal()
                self.compare()
        finally:
            for told in self.running:
                told.probe.kill()
            self.network.stop()
            if self.server.process is not None:
                self.server.kill()
            self.folder.cleanup()

    def heal(self):
        """Everything works again, and everybody comes to an end."""
        self.network.faults.clear()
        if not self.is_up:
            self.server.start()
        for told in self.running:
            told.probe.ask("disk", "roomy")
            assert told.probe.ask("flush", PATIENCE_S), "with everything well, everything arrives"
            told.counters = told.probe.ask("close", PATIENCE_S)
        with Client(self.network.url) as client:
            report = push(self.root / "spool", client, restore=restored)
        assert report.problems == []
        assert report.num_rejected == 0
        assert list(self.root.glob("spool/*")) == []
        self.server.stop()

    def compare(self):
        with duckdb.connect(self.root / "data" / "entrostat.duckdb", read_only=True) as database:
            ask = lambda sql: database.execute(sql).fetchall()  # noqa: E731
            ledger = ask("select stream_id, seq from raw.batch")
            assert len(ledger) == len(set(ledger))
            assert self.network.acked <= set(ledger), "acknowledged is stored"
            half = ask(
                "with held as (select stream from raw.step_part union all select stream from raw.token_row "
                "union all select stream from raw.event_row), "
                "told as (select stream, sum(num_rows) as n from raw.batch group by stream) "
                "select stream, n, count(*) from told join held using (stream) group by all having n != count(*)"
            )
            assert half == [], "a batch is stored whole or not at all"
            for told in self.probes:
                self.compare_one(told, ask)

    def compare_one(self, told, ask):
        of_it = f"join raw.stream using (stream) where stream_id = '{told.probe.stream_id}'"
        steps = ask(f"select step from raw.step_part {of_it} and name = 'n' order by step")
        stored = {step for (step,) in steps}
        assert len(steps) == len(stored), "a step is stored once"
        assert stored <= set(told.puts)
        tokens = dict(ask(f"select step, count(*) from raw.token_row {of_it} group by step"))
        wrong = {s: (n, told.puts[s].num_tokens) for s, n in tokens.items() if n != told.puts[s].num_tokens}
        assert wrong == {}, "a step's tokens are stored once, all or none"
        assert set(tokens) <= stored
        missing = set(told.puts) - stored
        if told.was_killed:
            self.compare_killed(told, missing)
            return
        said = [json.loads(d) for (d,) in ask(f"select detail from raw.event_row {of_it} and kind = 'dropped'")]
        assert sum(d.get("steps", 0) for d in said) == len(missing), "what was dropped is counted"
        num_tokens = sum(put.num_tokens for step, put in told.puts.items() if step not in tokens)
        assert sum(d.get("token_rows", 0) for d in said) == num_tokens
        assert (told.counters.dropped_items, told.counters.dropped_token_rows) == (len(missing), num_tokens)
        assert not (told.is_roomy and missing)

    def compare_killed(self, told, missing):
        """What was handed over is there. Of the rest, the last may be missing, and what no disk took."""
        if told.is_roomy:
            assert not [step for step in missing if told.puts[step].outlives]
            on_disk = [s for s, put in told.puts.items() if not put.while_disk_was_full and not put.outlives]
            there = [step for step in on_disk if step not in missing]
            if not any(put.while_disk_was_full for put in told.puts.values()):
                assert on_disk[: len(there)] == there, "a kill takes the last steps, none before them"


@pytest.mark.slow
def test_what_was_accepted_is_stored_once_or_counted():
    run_state_machine_as_test(
        Telemetry,
        settings=settings(
            max_examples=FAULTS or 12,
            stateful_step_count=30 if FAULTS else 20,
            derandomize=not FAULTS,
            database=None,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
