"""Random steps, as the oracle wants them and as an adapter would hand them over."""

import numpy as np
import torch
from reference import signals_oracle as oracle

from entrostat.probe.capture import Capture, Observed, capture
from entrostat.probe.token_stats import TokenStats

VOCABULARY = 11
CANDIDATES = 4


def random_step(seed, num_prompts=3, group=4, longest=7):
    """A list of responses (see tests/reference/signals_oracle.py), with the logits they came from."""
    rng = np.random.default_rng(seed)
    step = []
    for prompt in range(num_prompts):
        for _ in range(group):
            length = int(rng.integers(1, longest + 1))
            logits = rng.normal(size=(length, VOCABULARY)) * 2
            logps = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            ids = rng.integers(0, VOCABULARY, size=length)
            logp = logps[np.arange(length), ids]
            ordered = -np.sort(-logps, axis=1)
            advantage = float(rng.normal())
            old = logp + rng.normal(size=length) * 0.3
            step.append({
                "ids": ids.tolist(), "logits": logits, "logp": logp.tolist(),
                "entropy": (-(np.exp(logps) * logps).sum(1)).tolist(),
                "A": [advantage] * length, "old": old.tolist(),
                "top1": (logps.argmax(1) == ids).tolist(), "ranks": ordered[:, :CANDIDATES].tolist(),
                "ordered_ids": np.argsort(-logps, axis=1)[:, :CANDIDATES].tolist(), "logps": logps.tolist(),
                "sum_p2": (np.exp(logps) ** 2).sum(1).tolist(), "norm": rng.uniform(1, 3, size=length).tolist(),
                "prompt": prompt, "reward": float(rng.integers(0, 2)), "truncated": bool(rng.integers(0, 2)),
            })  # fmt: skip
    _add_rollout(step, np.random.default_rng([seed, 1]))
    return step


def _add_rollout(step, rng):
    """What the rollout engine reported: a little off the trainer's, a tenth of it unknown."""
    for response in step:
        rollout = np.array(response["old"]) + rng.normal(size=len(response["old"])) * 0.5
        rollout[rng.uniform(size=rollout.size) < 0.1] = np.nan
        response["rollout"] = rollout.tolist()
    step[0]["rollout"][0] = step[0]["old"][0] + 0.8  # one is known, and its ratio is below 1/2


def _padded(step, key, fill=0.0, dtype=torch.float64):
    width = max(len(r["logp"]) for r in step)
    rows = [list(r[key]) + [fill] * (width - len(r[key])) for r in step]
    return torch.tensor(rows, dtype=dtype)


def observed(step):
    """The step as padded tensors in float64, so that what differs from the oracle is a mistake, not rounding."""
    width = max(len(r["logp"]) for r in step)
    mask = torch.tensor([[1] * len(r["logp"]) + [0] * (width - len(r["logp"])) for r in step])
    logp = _padded(step, "logp")
    return Observed(
        logp=logp,
        entropy=_padded(step, "entropy"),
        mask=mask,
        token_ids=_padded(step, "ids", dtype=torch.int64),
        advantages=torch.tensor([r["A"][0] for r in step], dtype=torch.float64),
        log_ratio=logp - _padded(step, "old"),
        is_top1=_padded(step, "top1", False, torch.bool),
        sum_p2=_padded(step, "sum_p2"),
        hidden_norm=_padded(step, "norm"),
        prompt=torch.tensor([r["prompt"] for r in step]),
        reward=torch.tensor([r["reward"] for r in step], dtype=torch.float64),
        truncated=torch.tensor([r["truncated"] for r in step]),
        rollout_logp=_padded(step, "rollout", float("nan")),
    )


def measure_of(step):
    """A ``MeasureRows`` that reads the candidates off the oracle's own lists."""
    width = max(len(r["logp"]) for r in step)

    def measure(rows):
        top, ids, support, certainty = [], [], [], []
        for row in rows.tolist():
            response, position = divmod(row, width)
            inside = position < len(step[response]["logp"])
            logps = step[response]["logps"][position] if inside else [0.0] * VOCABULARY
            top.append(step[response]["ranks"][position] if inside else [0.0] * CANDIDATES)
            ids.append(step[response]["ordered_ids"][position] if inside else [-1] * CANDIDATES)
            support.append(oracle.support95(logps, CANDIDATES))
            certainty.append(oracle.self_certainty_of(logps))
        filler = torch.zeros(len(rows), dtype=torch.float64)
        return TokenStats(
            logp=filler, entropy=filler, logsumexp=filler, top_ids=torch.tensor(ids).reshape(-1, CANDIDATES),
            top_logps=torch.tensor(top, dtype=torch.float64).reshape(-1, CANDIDATES),
            rank=torch.ones(len(rows), dtype=torch.int64), is_top1=torch.ones(len(rows), dtype=torch.bool),
            sum_p2=filler, support95=torch.tensor(support, dtype=torch.int64),
            self_certainty=torch.tensor(certainty, dtype=torch.float64),
            num_finite=torch.full((len(rows),), VOCABULARY),
        )  # fmt: skip

    return measure


def captured(step, budget=None, seed=0, measure_all=False, keep=None) -> Capture:
    """The step as one micro-batch on its way to the host."""
    generator = torch.Generator().manual_seed(seed)
    return capture(
        observed(step), measure=measure_of(step), measure_all=measure_all, budget=budget, generator=generator, keep=keep
    )
