"""Why a declared signal has no value in a run: said once, as an event, never as a 0."""

from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.step import StepData
from entrostat.wire.declared.groups import PASS_AT
from entrostat.wire.signals import FAMILIES, Need, Signal

_MISSING: dict[Need, str] = {
    "advantages": "no advantages were given",
    "groups": "no prompt groups were given",
    "rewards": "no rewards were given",
    "old log-probs": "no log-probs of the old policy were given",
    "candidates": "the candidates were not measured: no hidden states or logits were at hand",
    "sum of squares": "sum p^2 is known only for a sample of tokens, or not at all",
    "hidden states": "no hidden states were at hand",
    "text": "texts were not read: no tokenizer was at hand",
    "prompt texts": "the prompts' tokens were not given",
    "answers": "no answers were read from texts",
    "rollout log-probs": "the engine that sampled reported no log-probs, or they were not given",
    "rollout probe": "only a probe in the rollout engine's own process sends these",
}


def absences(there: frozenset[Need], settings: Settings) -> dict[str, list[str]]:
    """Reason -> names of the signals that a step with the inputs ``there`` cannot have."""
    found: dict[str, list[str]] = {}
    for family, signals in FAMILIES.items():
        for signal in signals:
            reason = _reason(family, signal, there, settings)
            if reason is not None:
                found.setdefault(reason, []).append(signal.name)
    return found


def inputs(step: StepData, rollouts: list[Rollout]) -> frozenset[Need]:
    """What a step has of the inputs that not every trainer gives; rewards come in rollouts or with the responses."""
    has: dict[Need, bool] = {
        "advantages": step.advantage is not None,
        "groups": step.prompt is not None,
        "rewards": bool(rollouts) or step.reward is not None,
        "old log-probs": step.log_ratio is not None,
        "candidates": step.candidates is not None,
        "sum of squares": step.sum_p2 is not None,
        "hidden states": step.hidden_norm is not None,
        "text": step.reading is not None,
        "prompt texts": step.prompt_ids is not None,
        "answers": step.reading is not None,
        "rollout log-probs": step.rollout_logp is not None,
        "rollout probe": False,  # never this process's
    }
    return frozenset(need for need, is_there in has.items() if is_there)


def _reason(family: str, signal: Signal, there: frozenset[Need], settings: Settings) -> str | None:
    # Derived signals cost the run nothing: the views make them from rows that are sent anyway.
    if family in settings.without and signal.merge != "derived":
        return f"the family {family!r} is switched off"
    if missing := [need for need in signal.needs if need not in there]:
        return "; ".join(_MISSING[need] for need in missing)
    too_large = {f"{kind}_at_{k}" for kind in ("pass", "maj") for k in PASS_AT if k > (settings.group_size or k)}
    return f"groups have {settings.group_size} responses" if signal.name in too_large else None
