"""What Prometheus reads: the server's health, and the main signals of the runs that are live."""

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from entrostat.storage.writer import Commit
from entrostat.wire.signals import BY_NAME

MAX_RUNS = 20
"""At most so many live runs have series of their own: a label without a bound is a leak."""
SIGNALS = (
    "entropy_mean", "d_collapse", "reward_mean", "pass_at_1", "ppl", "cov_mean", "length_mean", "approx_kl",
    "zero_variance_groups", "truncated_rate", "num_tokens", "num_invalid_tokens", "step_s", "probe_share",
)  # fmt: skip
_COMMIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


LiveSignals = Callable[[tuple[str, ...], int], list[tuple[str, int | None, dict[str, float]]]]
"""(signals, limit) -> (run, last step, signal -> value) of the live runs, newest first."""


class Metrics:
    """The meters of one application, in a registry of their own.

    Args:
        queue_bytes: asked at each scrape.
        live_runs: asked at each scrape.
        num_restarts: how often the process has replaced itself.
    """

    def __init__(
        self,
        queue_bytes: Callable[[], int],
        live_runs: LiveSignals,
        num_restarts: int = 0,
    ) -> None:
        self._registry = CollectorRegistry()
        made: dict[str, Any] = {"registry": self._registry}
        self._batches = Counter("entrostat_batches", "Batches written.", **made)
        self._duplicates = Counter("entrostat_duplicate_batches", "Batches that were held already.", **made)
        self._rows = Counter("entrostat_rows", "Rows written.", **made)
        self._bytes = Counter("entrostat_bytes", "Bytes of the bodies of batches written.", **made)
        self._refused = Counter("entrostat_refused_requests", "Requests refused, by error code.", ["code"], **made)
        self._commit_s = Histogram(
            "entrostat_commit_seconds", "From begin to the end of COMMIT.", buckets=_COMMIT_BUCKETS, **made
        )
        self._query_s = Histogram("entrostat_query_seconds", "SQL queries of people.", **made)
        Counter("entrostat_restarts", "How often the server has replaced itself.", **made).inc(num_restarts)
        Gauge("entrostat_queue_bytes", "Memory of batches not yet written.", **made).set_function(queue_bytes)
        self._registry.register(_LiveRuns(live_runs))

    def committed(self, commit: Commit) -> None:
        """A commit was done."""
        self._batches.inc(commit.num_batches)
        self._rows.inc(commit.num_rows)
        self._bytes.inc(commit.num_bytes)
        self._duplicates.inc(commit.num_duplicates)
        self._commit_s.observe(commit.seconds)

    def queried(self, seconds: float) -> None:
        """A person's query was answered."""
        self._query_s.observe(seconds)

    def refused(self, code: str) -> None:
        """A request was refused."""
        self._refused.labels(code=code).inc()

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self._registry)


class _LiveRuns(Collector):
    """Made anew at each scrape: a run that ends takes its series with it."""

    def __init__(self, live_runs: LiveSignals) -> None:
        self._live_runs = live_runs

    def collect(self) -> Iterable[Metric]:
        """The gauges of the live runs."""
        runs = self._live_runs(SIGNALS, MAX_RUNS)
        step = GaugeMetricFamily("entrostat_run_last_step", "Last step of a live run.", labels=["run"])
        for run, last_step, _ in runs:
            if last_step is not None:
                step.add_metric([run], last_step)
        yield step
        for name in SIGNALS:
            signal = BY_NAME[name]
            family = GaugeMetricFamily(
                f"entrostat_run_{name}", f"{signal.meaning} Unit: {signal.unit}.", labels=["run"]
            )
            for run, _, values in runs:
                if name in values:
                    family.add_metric([run], values[name])
            yield family

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: registering must not ask the database."""
        return []
