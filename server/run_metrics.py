"""What Prometheus reads of the runs: when each was last heard, what its probes lost, and its main signals."""

import logging
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from entrostat.storage.store import Store
from entrostat.storage.watched import WatchedRun
from entrostat.wire.logs import event
from entrostat.wire.signals import BY_NAME

_log = logging.getLogger(__name__)

MAX_RUNS = 20
"""At most so many runs have series of their own: a label without a bound is a leak."""
SIGNALS = (
    "entropy_mean", "d_collapse", "reward_mean", "pass_at_1", "ppl", "cov_mean", "length_mean", "approx_kl",
    "zero_variance_groups", "truncated_rate", "num_tokens", "num_invalid_tokens", "step_s", "probe_share",
)  # fmt: skip


class Runs(Collector):
    """Made anew at each scrape: a run that ends takes its series with it, one that falls silent keeps them for hours.

    Args:
        store: asked at each scrape.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterable[Metric]:
        """The gauges and counters of the watched runs; without them where the database cannot be read."""
        try:
            runs = self._store.watched_runs(SIGNALS, MAX_RUNS)
        except Exception as error:  # noqa: BLE001 a broken database must not take the server's own health off the page
            event(_log, logging.ERROR, "runs_unreadable", message=str(error))
            yield _readable(False)
            return
        yield _readable(True)
        yield from _standing(runs)
        yield from _losses(runs)
        yield from _signals(runs)

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: registering must not ask the database."""
        return []


def _readable(value: bool) -> Metric:
    return GaugeMetricFamily("entrostat_runs_readable", "0 if the database could not be read.", value=float(value))


def _standing(runs: Sequence[WatchedRun]) -> Iterable[Metric]:
    live = GaugeMetricFamily("entrostat_live_runs", "Runs that sent something within the last 30 s.")
    live.add_metric([], sum(run.is_live for run in runs))
    yield live
    seen = GaugeMetricFamily(
        "entrostat_run_last_batch_timestamp_seconds",
        "When the last batch came of a run that has not ended, seconds since 1970.",
        labels=["run"],
    )
    step = GaugeMetricFamily("entrostat_run_last_step", "Last step of a run.", labels=["run"])
    for run in runs:
        if run.last_seen is not None:
            seen.add_metric([run.run], run.last_seen.timestamp())
        if run.last_step is not None:
            step.add_metric([run.run], run.last_step)
    yield from (seen, step)


def _losses(runs: Sequence[WatchedRun]) -> Iterable[Metric]:
    steps = CounterMetricFamily(
        "entrostat_run_dropped_steps", "Steps that a run's probes dropped, as they say.", labels=["run", "reason"]
    )
    rows = CounterMetricFamily(
        "entrostat_run_dropped_token_rows", "Token rows that a run's probes dropped.", labels=["run", "reason"]
    )
    warnings = CounterMetricFamily("entrostat_run_warnings", "Warnings that a run's probes sent.", labels=["run"])
    for run in runs:
        for reason, count in run.losses.num_steps.items():
            steps.add_metric([run.run, reason], count)
        for reason, count in run.losses.num_token_rows.items():
            rows.add_metric([run.run, reason], count)
        warnings.add_metric([run.run], run.losses.num_warnings)
    yield from (steps, rows, warnings)


def _signals(runs: Sequence[WatchedRun]) -> Iterable[Metric]:
    for name in SIGNALS:
        signal = BY_NAME[name]
        family = GaugeMetricFamily(f"entrostat_run_{name}", f"{signal.meaning} Unit: {signal.unit}.", labels=["run"])
        for run in runs:
            if name in run.values:
                family.add_metric([run.run], run.values[name])
        yield family
