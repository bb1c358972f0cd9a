"""Supervised fine-tuning with a probe: a small model learns a task with many right answers, on a CPU, with no download.

entrostat up &            # or nothing: then it spools to disk
python examples/sft_trl.py
"""

import argparse
import os
import random
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")  # on small models threads only wait for each other

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

import entrostat
from entrostat.lab.many_answers import task, teach


def main(steps: int = 60, packing: bool = False) -> str:
    """Train; returns the run's name. The loss is over the completions alone, and so is what is recorded."""
    draw = random.Random(0)
    pairs = [task.teaching_pair(draw) for _ in range(16 * steps)]
    tokenizer = task.make_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=teach.make_model(tokenizer, seed=0),
            args=SFTConfig(
                output_dir=folder, max_steps=steps, per_device_train_batch_size=16, learning_rate=3e-3,
                packing=packing, max_length=64, bf16=False, use_cpu=True, gradient_checkpointing=False,
                report_to=[], save_strategy="no", logging_steps=10, seed=0,
            ),
            train_dataset=Dataset.from_list([{"prompt": prompt, "completion": answer} for prompt, answer in pairs]),
            processing_class=tokenizer,
        )  # fmt: skip
        handle = entrostat.attach(trainer)
        trainer.train()
    return handle.run_id


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--packing", action="store_true", help="several pairs a row")
    options = parser.parse_args()
    run = main(options.steps, options.packing)
    print(f"""entrostat sql "select step, entropy_mean, ppl, top1_rate from step where run = '{run}' order by step" """)
