"""The experiment as a whole: teach, train, evaluate, a table."""

import os
import tempfile
import time
from typing import Annotated

import typer


def run(
    steps: Annotated[int, typer.Option(min=1, help="GRPO steps.")] = 60,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs, from seed 0.")] = 3,
    teach_steps: Annotated[
        int | None, typer.Option(min=1, help="Supervised steps; else the demo's number.", show_default=False)
    ] = None,
) -> None:
    """GRPO on a task with many right answers: entropy, pass@1, pass@8 and distinct answers before and after."""
    # Before torch is imported: on small models threads only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from rich.console import Console
    from rich.table import Table

    from entrostat.lab.many_answers import evaluate, grpo, task, teach

    names = ("entropy", "pass@1", "pass@8", "distinct right")
    table = Table("seed", *(f"{n} before" for n in names), *(f"{n} after" for n in names), "teach s", "GRPO s")
    for seed in range(seeds):
        tokenizer = task.make_tokenizer()
        model = teach.make_model(tokenizer, seed)
        began = time.perf_counter()
        teach.teach(model, tokenizer, seed=seed, steps=teach_steps or teach.STEPS)
        taught_s = time.perf_counter() - began
        before = evaluate.evaluate(model, tokenizer)
        with tempfile.TemporaryDirectory() as folder:
            trainer = grpo.make_trainer(model, tokenizer, steps=steps, seed=seed, output_dir=folder)
            began = time.perf_counter()
            trainer.train()
        cells = [
            f"{value:.2f}"
            for e in (before, evaluate.evaluate(model, tokenizer))
            for value in (e.entropy, e.pass1, e.pass_at[8], e.distinct_right)
        ]
        table.add_row(str(seed), *cells, f"{taught_s:.0f}", f"{time.perf_counter() - began:.0f}")
    Console(width=160).print(table)
