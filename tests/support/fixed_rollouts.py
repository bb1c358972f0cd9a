"""A GRPO run whose rollouts are fixed by prompt and place, so that one process and two train on the same data.

``torchrun --nproc_per_node 2 fixed_rollouts.py OUT URL RUN GROUP ROLLOUTS_PER_STEP [INTERVENTIONS]`` (or ``python`` for
one process). INTERVENTIONS is JSON, name -> parameters: on from step 2, and heard of by rank 0 alone.
"""

import hashlib
import json
import logging
import os
import random
import sys


def completions_of(prompts, first, group, tokenizer):
    """A response for each place in the step: words drawn by prompt and place, some cut at the length limit."""
    found = []
    for i, prompt in enumerate(prompts):
        member = (first + i) % group
        draw = random.Random(hashlib.sha256(f"{prompt}/{member}".encode()).digest())
        length = draw.randint(1, 8)
        ids = [draw.choice([2, 2, *range(2, 22)]) for _ in range(length)]
        found.append([*ids, tokenizer.eos_token_id] if length < 8 else ids)
    return found


def hear(interventions, rank):
    """In the place of a server: rank 0 hears of the interventions, the others of nothing."""
    from entrostat.trainer_adapters.controller import Intent
    from entrostat.trainer_adapters.session import Session
    from entrostat.wire.messages import ActiveIntervention, DesiredState

    items = [
        ActiveIntervention(name=name, params=params, because="a test", by="person:anna")
        for name, params in interventions.items()
    ]

    def intent(session, waited_s=0.0):
        intent.calls += 1
        is_on = rank == 0 and intent.calls >= 2
        return Intent(DesiredState(version=intent.calls, interventions=items if is_on else []))

    intent.calls = 0
    Session.intent = intent


def main(out, url, run, group, per_step, interventions):
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    logging.disable(logging.WARNING)
    from support import tiny_trl

    import entrostat

    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    local = per_step // num_ranks

    def rollouts(prompts, trainer):
        tokenizer = trainer.processing_class
        return {
            "prompt_ids": [tokenizer.encode(p) for p in prompts],
            "completion_ids": completions_of(prompts, rank * local, group, tokenizer),
            "logprobs": None,
        }

    trainer = tiny_trl.trainer(
        f"{out}/{run}-{rank}", per_device_train_batch_size=local, num_generations=group, max_steps=4,
        num_iterations=2, shuffle_dataset=False, rollout_func=rollouts,
    )  # fmt: skip
    if interventions:
        hear(interventions, rank)
    entrostat.attach(
        trainer, run=run, url=url, directory=f"{out}/spool", tokens="all",
        mode="act" if interventions else "observe", reference=tiny_trl.model(seed=5),
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        sys.argv[3],
        int(sys.argv[4]),
        int(sys.argv[5]),
        json.loads((sys.argv[6:] or ["{}"])[0]),
    )
