"""Rewards by prompt: mean and spread, groups without a gradient, pass@k; tokens without an advantage."""

from collections.abc import Iterator, Sequence
from math import comb

import numpy as np

from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.step import Floats, Ints, StepData
from entrostat.wire.mergeable import Part, mean_of, std_of
from entrostat.wire.signals import PASS_AT


def parts(rollouts: Sequence[Rollout], settings: Settings) -> dict[str, Part]:
    """Reward signals of the generations that this step used first; none where it made no generation.

    Responses without a reward (NaN) are left out; so are groups with fewer responses than the group size.
    """
    if not rollouts:
        return {}
    reward = np.concatenate([r.reward for r in rollouts])
    scored = reward[np.isfinite(reward)]
    found = {"reward_mean": mean_of(scored), "reward_std": std_of(scored)}
    prompt = np.concatenate([r.prompt for r in rollouts])
    groups = [reward[members] for members in complete_groups(prompt, settings.group_size)]
    groups = [g for g in groups if np.isfinite(g).all()]
    return found | _group_parts(groups, settings.correct_at)


def advantage_parts(step: StepData, settings: Settings) -> dict[str, Part]:
    """``zero_advantage_rate``, over tokens."""
    return {} if step.advantage is None else {"zero_advantage_rate": mean_of(step.advantage == 0)}


def _group_parts(groups: list[Floats], correct_at: float) -> dict[str, Part]:
    right = [(g >= correct_at).sum() for g in groups]
    sizes = [g.size for g in groups]
    pairs = list(zip(right, sizes, strict=True))
    found = {
        "zero_variance_groups": mean_of(np.array([np.ptp(g) == 0 for g in groups])),
        "all_right_groups": mean_of(np.array([c == n for c, n in pairs])),
        "all_wrong_groups": mean_of(np.array([c == 0 for c, _ in pairs])),
    }
    largest = min(sizes, default=0)
    for k in PASS_AT:
        if k <= largest:
            found[f"pass_at_{k}"] = mean_of(np.array([pass_at_k(n, int(c), k) for c, n in pairs]))
    return found


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased probability that one of k responses is right, from n responses of which c are: 1 - C(n-c,k)/C(n,k)."""
    return 1.0 - comb(n - c, k) / comb(n, k)


def complete_groups(prompt: Ints, group_size: int | None) -> Iterator[Ints]:
    """The members [G] (indices) of each prompt's group, smaller ones left out.

    Args:
        prompt: [B] prompt number of each response.
        group_size: responses per prompt; None takes every group as complete.
    """
    order = np.argsort(prompt, kind="stable")
    edges = np.flatnonzero(np.diff(prompt[order])) + 1
    for members in np.split(order, edges):
        if members.size and (group_size is None or members.size >= group_size):
            yield members
