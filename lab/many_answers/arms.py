"""One run of the task under a rule, with the real server in between; the same taught model and seed for every arm."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entrostat.lab.many_answers.evaluate import Evaluation

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from entrostat.wire.client import Client

TEACH_STEPS = 1200
"""Twice the demo's: a model that is still learning to add has no accuracy to spare for variety (README)."""
SETTINGS: Mapping[str, Any] = {"learning_rate": 1e-3, "lr_scheduler_type": "linear"}
"""Of GRPO, for every arm that is compared: decaying, so that the last steps' noise is not what is measured."""
HELD_AT, BAND = 0.5, 0.05
"""Nats. The taught models have 1.05, GRPO alone ends below 0.2; always right, with the first number drawn evenly, would
be ln 35 over five tokens, 0.7."""
EVALUATE_EVERY = 25


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train.

    Args:
        name: short, for the run's name and tags.
        label: for tables.
        rule: put on the server for this run alone; None: nothing may be done to the run.
    """

    name: str
    label: str
    rule: Mapping[str, Any] | None = None


PLAIN = Arm("plain", "GRPO alone")
THERMOSTAT = Arm(
    "thermostat",
    "entropy held by SCOPE",
    {
        "hold": {"signal": "entropy_mean", "at": HELD_AT, "band": BAND, "window": 3},
        "with": {"intervention": "scope", "param": "lam", "min": 0.0, "max": 0.5, "gain": 0.5, "integral": 0.1},
        "evidence": "lab/many_answers/README.md",
        "meaning": "The entropy is below the band; the tokens that would lose most of it are held to the taught model.",
    },
)


def constant(intervention: str, **params: float) -> Arm:
    """An intervention that is on from the first steps to the last."""
    said = ",".join(f"{name}={value:g}" for name, value in params.items())
    rule = {"when": {"step": {"from": 1}}, "do": {"intervention": intervention, "params": params}}
    name = "-".join([intervention, *(f"{value:g}" for value in params.values())])
    return Arm(name, f"{intervention} {said}".strip(), rule)


@dataclass(slots=True)
class Result:
    """What a run came to.

    Args:
        run_id: as the server knows it.
        after: fresh samples of the trained policy.
        curve: (step, fresh samples) on the way.
        batches_written: by the probe.
    """

    run_id: str
    after: Evaluation
    curve: list[tuple[int, Evaluation]] = field(default_factory=list)
    batches_written: int = 0


def run_arm(
    arm: Arm,
    client: "Client",
    taught: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
    *,
    run: str,
    steps: int,
    seed: int,
    directory: Path,
    scratch: str,
    evaluate_every: int = EVALUATE_EVERY,
    on_step: Callable[[int], None] | None = None,
    **settings: Any,
) -> Result:
    """Train a copy of ``taught`` with GRPO, watched, under the arm's rule.

    Args:
        arm: what may happen to the run.
        client: of the server.
        taught: left as it is.
        tokenizer: the task's.
        run: the run's name; must be new on this server.
        steps: of GRPO.
        seed: of prompts, sampling and evaluation.
        directory: of the spool.
        scratch: for TRL's files.
        evaluate_every: fresh samples after so many steps, logged with the run as ``eval/...``; 0: none.
        on_step: called with the number of each step that has ended.
        **settings: of ``GRPOConfig``; ``SETTINGS`` where arms are compared.
    """
    import entrostat
    from entrostat.lab.many_answers import evaluate, grpo

    model = copy.deepcopy(taught)
    trainer = grpo.make_trainer(
        model,
        tokenizer,
        steps=steps,
        seed=seed,
        output_dir=f"{scratch}/{run}",
        on_step=lambda step: ended(step),
        **settings,
    )
    handle = entrostat.attach(
        trainer,
        run=run,
        url=client.url,
        directory=directory,
        tags={"demo": "many_answers", "arm": arm.name, "seed": str(seed)},
        answer_pattern=r"\d+\+\d+",
        keep_text=True,
        mode="observe" if arm.rule is None else "act",
        reference=None if arm.rule is None else entrostat.FrozenCopy(),
    )
    result = Result(run, evaluate.evaluate(model, tokenizer, seed=seed))

    def ended(step: int) -> None:
        if evaluate_every and step % evaluate_every == 0 and step < steps:
            found = evaluate.evaluate(model, tokenizer, seed=seed)
            result.curve.append((step, found))
            handle.log(step, evaluated(found))
        if on_step is not None:
            on_step(step)

    rule_name = f"demo-{arm.name}-{run}"[:64].lower()
    if arm.rule is not None:
        client.put_rule({"name": rule_name, "mode": "act", "runs": {"name": run}, **arm.rule})
    try:
        trainer.train()
    finally:
        if arm.rule is not None:
            client.delete_rule(rule_name)
    result.run_id, result.batches_written = handle.run_id, handle.counters.batches_written
    result.after = evaluate.evaluate(model, tokenizer, seed=seed)
    return result


def evaluated(found: Evaluation) -> dict[str, float]:
    """An evaluation as metrics of a run."""
    return {
        "eval/pass_at_1": found.pass1,
        "eval/pass_at_8": found.pass_at[8],
        "eval/distinct_right": found.distinct_right,
        "eval/entropy": found.entropy,
    }
