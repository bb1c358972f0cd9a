"""What Prometheus reads of the server itself: what came in, what was refused, what waits, disk, memory, start.

``run_metrics.py`` has the runs. ``docs/metrics.md`` lists them all; ``deploy/prometheus/alerts.yml`` is made on them.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from entrostat.server.http_errors import CODES
from entrostat.server.readiness import REASONS, Hindrance
from entrostat.server.run_metrics import Runs
from entrostat.storage.store import Store
from entrostat.storage.writer import Commit
from entrostat.wire.tables import PROTOCOL

_COMMIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The meters of one application, in a registry of their own.

    Args:
        store: asked for its state, and for the runs, at each scrape.
        hindrance: asked at each scrape.
        max_queries: slots for people's queries.
        version: of entrostat.
        num_restarts: how often the process has replaced itself.
    """

    def __init__(
        self,
        store: Store,
        hindrance: Callable[[], Hindrance | None],
        max_queries: int,
        version: str,
        num_restarts: int = 0,
    ) -> None:
        self.registry = CollectorRegistry()
        made: dict[str, Any] = {"registry": self.registry}
        self._batches = Counter("entrostat_batches", "Batches written.", **made)
        self._duplicates = Counter("entrostat_duplicate_batches", "Batches that were held already.", **made)
        self._rows = Counter("entrostat_rows", "Rows written.", **made)
        self._bytes = Counter("entrostat_bytes", "Bytes of the bodies of batches written.", **made)
        self._refused = Counter("entrostat_refused_requests", "Requests refused, by error code.", ["code"], **made)
        for code in CODES:  # from 0 on: of a series that begins with 1 no rate sees the first refusal
            self._refused.labels(code=code)
        self._commit_s = Histogram(
            "entrostat_commit_seconds", "From begin to the end of COMMIT.", buckets=_COMMIT_BUCKETS, **made
        )
        self._query_s = Histogram("entrostat_query_seconds", "SQL queries of people, refused ones too.", **made)
        self._queries = Gauge("entrostat_queries_running", "SQL queries of people that run or wait for a slot.", **made)
        Gauge("entrostat_query_slots", "SQL queries of people that may run at once.", **made).set(max_queries)
        Counter("entrostat_restarts", "How often the server has replaced itself.", **made).inc(num_restarts)
        build = {"version": version, "protocol": str(PROTOCOL), "schema": str(store.schema_version)}
        Gauge("entrostat_build", "1; what runs is in the labels.", list(build), **made).labels(**build).set(1)
        _tell_of_start(store, self.registry)
        ProcessCollector(registry=self.registry)
        self.registry.register(_State(store, hindrance))
        self.registry.register(Runs(store))

    def committed(self, commit: Commit) -> None:
        """A commit was done."""
        self._batches.inc(commit.num_batches)
        self._rows.inc(commit.num_rows)
        self._bytes.inc(commit.num_bytes)
        self._duplicates.inc(commit.num_duplicates)
        self._commit_s.observe(commit.seconds)

    @contextlib.contextmanager
    def query(self) -> Iterator[None]:
        """Around a person's query."""
        started = time.perf_counter()
        self._queries.inc()
        try:
            yield
        finally:
            self._queries.dec()
            self._query_s.observe(time.perf_counter() - started)

    def refused(self, code: str) -> None:
        """A request was refused."""
        self._refused.labels(code=code).inc()

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)


def _tell_of_start(store: Store, registry: CollectorRegistry) -> None:
    opening = store.opening
    start = "When the server opened its database, seconds since 1970; a change is a restart."
    Gauge("entrostat_start_time_seconds", start, registry=registry).set_to_current_time()
    Gauge(
        "entrostat_recovered", "1 if the database had not been closed cleanly before this start.", registry=registry
    ).set(bool(opening.replayed_bytes))
    Gauge(
        "entrostat_opening_seconds", "What it took to open the database, the log's replay included.", registry=registry
    ).set(opening.seconds)


class _State(Collector):
    """The store's state and readiness, asked at each scrape; not the database, which may be the one in trouble."""

    def __init__(self, store: Store, hindrance: Callable[[], Hindrance | None]) -> None:
        self._store, self._hindrance = store, hindrance

    def collect(self) -> Iterable[Metric]:
        """The gauges."""
        state, hindrance = self._store.state(), self._hindrance()
        yield _gauge("ready", "1 if a batch could be taken now.", hindrance is None)
        hindered = GaugeMetricFamily(
            "entrostat_hindrance", "1 for the reason why the server is not ready.", labels=["reason"]
        )
        for reason in REASONS:
            hindered.add_metric([reason], float(hindrance is not None and hindrance.reason == reason))
        yield hindered
        yield _gauge("database_broken", "1 if the engine refuses everything until a new start.", bool(state.failure))
        yield _gauge("queue_bytes", "Memory of batches not yet written.", state.queue_bytes)
        yield _gauge("queue_limit_bytes", "Batches beyond it are refused.", state.max_queue_bytes)
        yield _gauge("batches_waiting", "Batches that wait or are being committed.", state.num_waiting)
        yield _gauge("oldest_batch_waiting_seconds", "How long the oldest of them has waited.", state.oldest_waiting_s)
        yield _gauge("database_bytes", "Size of the database file.", state.database_bytes)
        yield _gauge("wal_bytes", "Size of the database's write-ahead log.", state.log_bytes)
        if state.free_bytes is not None:
            yield _gauge("disk_free_bytes", "Free on the database's disk.", state.free_bytes)
            yield _gauge("disk_floor_bytes", "While less is free, batches are refused.", state.min_free_bytes)

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time."""
        return []


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"entrostat_{name}", meaning, value=float(value))
