"""Selection over a whole step: the score that its top share of tokens reached, over all ranks and micro-batches.

No rank has all tokens, but each sends histograms, and those add up (``wire/bins.py``). What the trainer gets is a score
that the tokens of its next micro-batches have to reach: the share it takes there is near the one asked for and not
exactly it (``docs/control.md`` has figures).
"""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

import duckdb
import numpy as np

from entrostat.storage.database import Database
from entrostat.storage.merged import JOIN, VALID
from entrostat.storage.runs import key_of, last_step
from entrostat.wire.bins import LOW, edges_of
from entrostat.wire.errors import NotFound
from entrostat.wire.interventions import BY_NAME
from entrostat.wire.messages import ActiveIntervention, DesiredState, Thresholds

_log = logging.getLogger(__name__)

STEPS_LOOKED_AT = 16
"""The last complete step is looked for among so many: a rank that is further behind is not waited for."""
LOWEST = -1e6
"""The lowest threshold of the catalogue; the lowest bin has no edge of its own."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a method ranks tokens by.

    Args:
        histogram: of the score over all valid tokens.
        share: the method's parameter that says how many.
        is_positive: only tokens with a score above 0 may be chosen (the share still counts them all).
        band: the parameters between which the score has to lie, for a method that draws its tokens from there.
    """

    histogram: str
    share: str
    is_positive: bool = False
    band: tuple[str, str] | None = None


SCORES = {
    "scope": Score("scope_score", "q", is_positive=True),
    "kl_cov": Score("cov_token", "k"),
    "clip_cov": Score("cov_token", "r", band=("w_low", "w_high")),
    "forking_tokens": Score("entropy", "share"),
}
"""Intervention -> its score. Those, and only those, whose tokens can be chosen over a whole step."""


def threshold(
    bins: np.ndarray, counts: np.ndarray, totals: np.ndarray, share: float, is_positive: bool = False
) -> float | None:
    """The score from which on there are about ``share`` of all counted tokens; at least one token has it.

    **Decision**: where the last token wanted lies in the lower half of its bin's tokens, the score is read between the
    bin's lower edge and its mean; in the upper half it is the mean. Above the mean nothing is known of a bin: scores of
    SCOPE pile up just below A / 4, and reading them as spread evenly up to the bin's edge chose no token at all. The
    number chosen is off by less than the tokens of that one bin, the score by less than the bin's width: 4.4 % of
    itself, 1.2e-4 in the middle bin. With ``is_positive`` the middle bin, which holds the zeros, is not entered: scores
    below 1.2e-4 are not chosen where the share would reach down to them.

    Args:
        bins: [K] int, ``wire/bins.py``, each once, in any order.
        counts: [K] int, tokens in each.
        totals: [K] float, sums of their scores.

    Returns:
        None where there is no token, or none that may be chosen.
    """
    wanted = max(1, math.floor(share * int(counts.sum()) + 1e-9))
    order = np.argsort(bins)[::-1]
    order = order[(counts[order] > 0) & ((bins[order] > 0) | (not is_positive))]
    if order.size == 0:
        return None
    reached = np.cumsum(counts[order])
    at = min(int(np.searchsorted(reached, wanted)), order.size - 1)  # all that may be chosen may be fewer
    count = int(counts[order[at]])
    part = min(1.0, (wanted - (int(reached[at]) - count)) / count)
    low = _lower_edge(int(bins[order[at]]), has_negative=bool((totals < 0).any()))
    mean = float(totals[order[at]]) / count
    # A sum of equal scores may be rounded to above them, and the trainer compares in float32.
    mean = max(low, mean - _ROUNDING * abs(mean))
    return mean if part <= 0.5 else low + (mean - low) * 2 * (1 - part)


def draw_threshold(bins: np.ndarray, counts: np.ndarray, share: float, low: float, high: float) -> float | None:
    """The draw from [0, 1) from which on a token of the band is taken, for ``share`` of all counted tokens.

    What an end of the band cuts off a bin is read as if the bin were evenly filled.

    Args:
        bins: [K] int, ``wire/bins.py``.
        counts: [K] int, tokens in each.
        share: of all tokens.
        low: lower end of the band.
        high: upper end.

    Returns:
        None where there is no token; 0 where the band holds fewer than are wanted.
    """
    num_tokens = int(counts.sum())
    if num_tokens == 0:
        return None
    inside = sum(int(count) * _part_inside(int(index), low, high) for index, count in zip(bins, counts, strict=True))
    wanted = share * num_tokens
    return 0.0 if inside <= wanted else 1.0 - wanted / inside


def _part_inside(index: int, low: float, high: float) -> float:
    """How much of a bin's width lies between ``low`` and ``high``."""
    start, end = edges_of(index)
    if index == 0:
        start, end = -(2.0**LOW), 2.0**LOW
    start, end = max(start, LOWEST), min(end, -LOWEST)
    return max(0.0, min(end, high) - max(start, low)) / (end - start)


_ROUNDING = 1e-6


def _lower_edge(index: int, has_negative: bool) -> float:
    """Of the bin's values, which for the middle one reaches below 0 where there are negative scores."""
    if index == 0:
        return -(2.0**LOW) if has_negative else 0.0
    return max(edges_of(index)[0], LOWEST)


Asked = tuple[float, ...]
"""The share, and the ends of the band where there is one."""


def shares(desired: DesiredState) -> dict[str, Asked]:
    """Intervention -> what is asked for, of those that are to choose over a whole step."""
    return {i.name: _asked(i) for i in desired.interventions if i.selection == "step" and i.name in SCORES}


def _asked(i: ActiveIntervention) -> Asked:
    score = SCORES[i.name]
    defaults = {p.name: p.default for p in BY_NAME[i.name].params}
    return tuple(float(i.params.get(name, defaults[name])) for name in (score.share, *(score.band or ())))  # type: ignore[arg-type]


def of_run(
    cursor: duckdb.DuckDBPyConnection, run_id: str, wanted: dict[str, Asked], known_step: int | None = None
) -> Thresholds | None:
    """The thresholds of the run's last complete step.

    Args:
        wanted: as ``shares`` gives them.
        known_step: the step whose thresholds the caller has.

    Returns:
        None where there is no such step, or where it is ``known_step``.

    Raises:
        NotFound: no such run.
    """
    key = key_of(cursor, run_id)
    newest = last_step(cursor, key)
    if newest is None or not wanted:
        return None
    found = cursor.execute(
        "select max(step) from raw.step_ranks where run = ? and step > ? and step <= ? and is_complete",
        [run_id, newest - STEPS_LOOKED_AT, newest],
    ).fetchall()
    step = found[0][0]
    if step is None or step == known_step:
        return None
    histograms = _histograms(cursor, key, step)
    values = {
        name: _value(SCORES[name], *histograms[SCORES[name].histogram], asked)
        for name, asked in wanted.items()
        if SCORES[name].histogram in histograms
    }
    return Thresholds(step=step, values={name: _allowed(name, v) for name, v in values.items() if v is not None})


def _value(score: Score, bins: np.ndarray, counts: np.ndarray, totals: np.ndarray, asked: Asked) -> float | None:
    if score.band is not None:
        return draw_threshold(bins, counts, *asked)
    return threshold(bins, counts, totals, asked[0], score.is_positive)


def _allowed(name: str, value: float) -> float:
    """``value`` within the catalogue's bounds: an entropy that rounding made negative is no reason to be refused."""
    bounds = next(p.bounds for p in BY_NAME[name].params if p.name == "threshold")
    return min(max(value, bounds["ge"]), bounds["le"])


def _histograms(
    cursor: duckdb.DuckDBPyConnection, key: int, step: int
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Name -> bins, counts and totals of a step, the ranks' added up."""
    rows = cursor.execute(
        f"select t.name, t.bin, sum(t.count)::bigint, sum(t.total) from raw.histogram_part t {JOIN} where {VALID} "
        "and t.run = ? and t.step = ? group by t.name, t.bin",
        [key, step],
    ).fetchall()
    found = {}
    for name in {row[0] for row in rows}:
        bins, counts, totals = zip(*(row[1:] for row in rows if row[0] == name), strict=True)
        found[name] = (np.array(bins, np.int64), np.array(counts, np.int64), np.array(totals, np.float64))
    return found


class ThresholdKeeper:
    """Keeps the thresholds of the runs in which something asks for them, so that an answer to a batch reads a dict.

    They are made on a thread of its own: neither a commit nor an answer waits. Several commits that come while one is
    looked at are looked at together.

    Args:
        desired: the newest desired state of a run; asks no database.
    """

    def __init__(self, database: Database, desired: Callable[[str], DesiredState]) -> None:
        self._database, self._desired = database, desired
        self._held: dict[str, Thresholds] = {}
        self._made_for: dict[str, tuple[int, dict[str, Asked]]] = {}
        self._waiting: dict[str, bool] = {}
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="entrostat-thresholds", daemon=True)
        self._thread.start()

    def of(self, run_id: str) -> Thresholds | None:
        """The newest that are known; None where none are asked for, or no step is complete yet."""
        return self._held.get(run_id)

    def look_at(self, run_id: str, anew: bool = False) -> None:
        """Something was committed, or is wanted, in the run. Returns at once.

        Args:
            anew: a session may have superseded the step that was looked at.
        """
        if not shares(self._desired(run_id)) and run_id not in self._held:
            return
        with self._changed:
            self._waiting[run_id] = anew or self._waiting.get(run_id, False)
            self._changed.notify()

    def close(self) -> None:
        """Stop, and leave what waits."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closing:
                    self._changed.wait()
                if self._is_closing:
                    return
                run_id, anew = self._waiting.popitem()
            try:
                self._make(run_id, anew)
            except Exception:  # noqa: BLE001 - the thread must live on; the last thresholds stay
                _log.exception("thresholds of run %r", run_id)

    def _make(self, run_id: str, anew: bool) -> None:
        wanted = shares(self._desired(run_id))
        step, made_for = self._made_for.get(run_id, (None, None))
        is_known = made_for == wanted and not anew
        try:
            with self._database.reading() as cursor:
                made = of_run(cursor, run_id, wanted, step if is_known else None)
        except NotFound:  # deleted in the meantime
            made, is_known = None, False
        if made is not None:
            self._held[run_id], self._made_for[run_id] = made, (made.step, wanted)
        elif not is_known:
            self._held.pop(run_id, None)
            self._made_for.pop(run_id, None)
