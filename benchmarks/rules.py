"""What the built-in rules cost the server for each step of a run: `python benchmarks/rules.py`.

A made-up run is sent to a store of its own step by step; after each the engine evaluates the pack. Printed are the pure
evaluation (a replay over the same steps, its rows in memory) and the live engine's whole turn: what is due, its values,
the evaluation, one transaction.
"""

import argparse
import json
import statistics
import tempfile
import time

import numpy as np

from entrostat.server.rules.engine import Engine
from entrostat.server.rules.history import History, Row
from entrostat.server.rules.needs import needs_of
from entrostat.server.rules.replay import replayed
from entrostat.storage.store import Store
from entrostat.wire.codec import decode_json
from entrostat.wire.messages import StreamOpen
from entrostat.wire.rules.pack import pack
from entrostat.wire.rules.rule import document_of

STREAM = "0" * 32


def rows(num_steps: int, signals: tuple[str, ...]) -> list[Row]:
    random = np.random.default_rng(0)
    return [Row(step, {name: float(random.uniform(0.3, 0.5)) for name in signals}) for step in range(num_steps)]


def live(made: list[Row]) -> list[float]:
    """Seconds of the engine's turn after each step."""
    taken = []
    with tempfile.TemporaryDirectory() as folder, Store(f"duckdb://{folder}/rules.duckdb", linger_s=0.0) as store:
        store.rules.put({rule.name: document_of(rule) for rule in pack()})
        store.open_stream(STREAM, StreamOpen(run_id="r", session_id=STREAM, started="2026-01-01T00:00:00Z"))
        engine = Engine(store)
        for row in made:
            parts = [{"step": row.step, "name": name, "value": value} for name, value in row.values.items()]
            body = json.dumps({"step_metric": parts}).encode()
            store.add_batch(STREAM, row.step, decode_json(body), len(body)).result(60)
            started = time.perf_counter()
            engine.advance("r")
            taken.append(time.perf_counter() - started)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    num_steps = parser.parse_args().steps
    rules = pack()
    needs = needs_of(rules)
    made = rows(num_steps, needs.signals)
    started = time.perf_counter()
    replayed(rules, History.of("r", made, 5, needs), lambda statement, step: None)
    pure = (time.perf_counter() - started) / num_steps
    taken = live(made)[num_steps // 2 :]
    print(f"{len(rules)} rules, {num_steps} steps, {len(needs.signals)} signals")
    print(f"evaluation alone   {pure * 1e3:6.2f} ms a step")
    print(f"live engine's turn {statistics.median(taken) * 1e3:6.2f} ms a step (median of the later half)")


if __name__ == "__main__":
    main()
