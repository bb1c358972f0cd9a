"""Teach, train, evaluate; print a table: ``python -m entrostat.lab.many_answers --steps 60 --seeds 3``."""

import argparse
import os
import tempfile
import time


def main() -> None:
    """Run it for each seed."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--teach-steps", type=int, default=None)
    chosen = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    from entrostat.lab.many_answers import evaluate, grpo, task, teach

    names = ("entropy", "pass@1", "pass@8", "distinct right")
    table = Table("seed", *(f"{n} before" for n in names), *(f"{n} after" for n in names), "teach s", "GRPO s")
    for seed in range(chosen.seeds):
        tokenizer = task.make_tokenizer()
        model = teach.make_model(tokenizer, seed)
        began = time.perf_counter()
        teach.teach(model, tokenizer, seed=seed, steps=chosen.teach_steps or teach.STEPS)
        taught_s = time.perf_counter() - began
        before = evaluate.evaluate(model, tokenizer)
        with tempfile.TemporaryDirectory() as folder:
            trainer = grpo.make_trainer(model, tokenizer, steps=chosen.steps, seed=seed, output_dir=folder)
            began = time.perf_counter()
            trainer.train()
        cells = [
            f"{value:.2f}"
            for e in (before, evaluate.evaluate(model, tokenizer))
            for value in (e.entropy, e.pass1, e.pass_at[8], e.distinct_right)
        ]
        table.add_row(str(seed), *cells, f"{taught_s:.0f}", f"{time.perf_counter() - began:.0f}")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
