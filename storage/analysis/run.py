"""Reads a run's curves and says what can be said of the whole of it."""

from dataclasses import asdict
from typing import Any

import duckdb
import numpy as np

from entrostat.storage.analysis.entropy_law import entropy_law
from entrostat.storage.analysis.floor_forecast import FLOOR, floor_forecast
from entrostat.storage.analysis.stage import stage
from entrostat.storage.derived import metrics_of
from entrostat.storage.runs import key_of

EVALUATED = ("trainer/eval_reward", "trainer/eval/reward")
"""A reward on data that is not trained on, as trainers log it: the first that is there comes before ``reward_mean``."""


def analysis(
    cursor: duckdb.DuckDBPyConnection, run_id: str, floor: float = FLOOR, reward: str | None = None
) -> dict[str, Any]:
    """``stage``, ``entropy_law`` and ``entropy_floor_forecast`` of a run, each with its values or why there are none.

    Args:
        floor: in nats.
        reward: the signal that ``entropy_law`` takes for R; None chooses (``EVALUATED``, then ``reward_mean``).

    Raises:
        NotFound: no such run.
    """
    key = key_of(cursor, run_id)
    baseline = cursor.execute("select to_step from raw.baseline where run = ?", [key]).fetchall()
    wanted = (reward,) if reward else (*EVALUATED, "reward_mean")
    curves = _curves(cursor, run_id, ("entropy_mean", *wanted))
    named = next((name for name in wanted if name in curves), wanted[-1])
    steps, entropy = curves.get("entropy_mean", (np.zeros(0, np.int64), np.zeros(0)))
    both, at, of = np.intersect1d(steps, curves[named][0] if named in curves else [], return_indices=True)
    rewards = curves[named][1][of] if both.size else np.zeros(0)
    return {
        "run": run_id,
        "entropy": "entropy_mean",
        "reward": named,
        "num_steps": int(steps.size),
        "stage": asdict(stage(steps, entropy, baseline[0][0] if baseline else None)),
        "entropy_law": asdict(entropy_law(entropy[at], rewards)),
        "entropy_floor_forecast": asdict(floor_forecast(steps, entropy, floor)),
    }


def _curves(
    cursor: duckdb.DuckDBPyConnection, run_id: str, names: tuple[str, ...]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name -> (steps [N] ascending, values [N]); a signal without a value is left out."""
    marks = {f"name_{i}": name for i, name in enumerate(names)}
    chosen = metrics_of(names, "run = $run_id").format(names=", ".join(f"${mark}" for mark in marks))
    rows = cursor.execute(
        f"select name, step, value from ({chosen}) where value is not null order by name, step",
        {"run_id": run_id, **marks},
    ).fetchnumpy()
    name = np.asarray(rows["name"], dtype=object)
    return {n: (rows["step"][name == n].astype(np.int64), rows["value"][name == n]) for n in names if (name == n).any()}
