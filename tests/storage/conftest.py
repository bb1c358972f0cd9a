"""A store in a file of its own, and the batches that producers would send it."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from entrostat.storage.store import Store
from entrostat.wire.codec import decode_json
from entrostat.wire.messages import StreamOpen

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def hex_id(number):
    return f"{number:032x}"


@dataclass
class Producer:
    """One stream: opens itself, numbers its batches, sends tables given as lists of rows."""

    store: Store
    stream_id: str
    opening: StreamOpen
    run: str = ""
    next_seq: int = 0
    sent: dict = field(default_factory=dict)

    def open(self):
        self.run = self.store.open_stream(self.stream_id, self.opening).run_id
        return self

    def add(self, seq=None, **tables):
        body = json.dumps(tables).encode()
        seq = self.next_seq if seq is None else seq
        self.next_seq = max(self.next_seq, seq + 1)
        return self.store.add_batch(self.stream_id, seq, decode_json(body), len(body))

    def send(self, seq=None, **tables):
        return self.add(seq, **tables).result(10)

    def metric(self, step, value, name="entropy_mean", **more):
        return self.send(step_metric=[{"step": step, "name": name, "value": value, **more}])


@pytest.fixture
def store(tmp_path):
    with Store(f"duckdb://{tmp_path / 'test.duckdb'}", linger_s=0.0) as opened:
        yield opened


@pytest.fixture
def produce(store):
    """``produce("run", session=1, rank=0, ...)`` opens a stream; later calls are later sessions by their clocks."""
    count = 0

    def make(run="r", session=1, in_store=None, **given):
        nonlocal count
        count += 1
        opening = StreamOpen(
            run_id=run,
            session_id=hex_id(1000 + session),
            started=given.pop("started", BEGAN + timedelta(seconds=session)),
            **given,
        )
        return Producer(in_store or store, hex_id(count), opening).open()

    return make


@pytest.fixture
def ask(store):
    def rows(sql, max_rows=100_000):
        return [tuple(row.values()) for row in store.query(sql, max_rows).table.to_pylist()]

    return rows
