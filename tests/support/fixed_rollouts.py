"""A GRPO run whose rollouts are fixed by prompt and place, so that one process and two train on the same data.

``torchrun --nproc_per_node 2 fixed_rollouts.py OUT URL RUN GROUP ROLLOUTS_PER_STEP`` (or ``python`` for one process).
"""

import hashlib
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


def main(out, url, run, group, per_step):
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
    entrostat.attach(trainer, run=run, url=url, directory=f"{out}/spool", tokens="all")
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
