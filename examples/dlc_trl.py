"""GRPO with and without DLC on the task with many right answers: how various the policy is after it, and what it costs.

python examples/dlc_trl.py --steps 60 --seeds 3
"""

import argparse
import os
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # on small models threads only wait for each other

import copy

from entrostat.lab.many_answers import evaluate, grpo, task, teach
from entrostat.trainer_adapters.sampling.smaller import smaller_memory
from entrostat.trainer_adapters.sampling.trl_dlc import DlcSampling


def train(taught, tokenizer, seed, steps, mu, learning_rate):
    """The policy after GRPO, CPU seconds of training, and the memory's last cross-entropy (None without one)."""
    model = copy.deepcopy(taught)
    with tempfile.TemporaryDirectory() as folder:
        trainer = grpo.make_trainer(model, tokenizer, steps=steps, seed=seed, output_dir=folder)
        dlc = None
        if mu is not None:
            dlc = DlcSampling(trainer, mu, smaller_memory(model.config, learning_rate=learning_rate)).install()
        began = time.process_time()
        trainer.train()
    if dlc is not None and dlc.failure:
        raise SystemExit(dlc.failure)
    return model, time.process_time() - began, dlc.memory_loss if dlc else None


def main():
    """One line a seed and setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mu", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of the memory")
    options = parser.parse_args()
    print("seed    mu  entropy  pass@1  pass@8  distinct right  memory's cross-entropy  CPU s")
    for seed in range(options.seeds):
        tokenizer = task.make_tokenizer()
        taught = teach.make_model(tokenizer, seed)
        teach.teach(taught, tokenizer, seed=seed)
        for mu in options.mu:
            model, seconds, known = train(taught, tokenizer, seed, options.steps, mu, options.learning_rate)
            after = evaluate.evaluate(model, tokenizer)
            print(
                f"{seed:4d} {mu:5.2f} {after.entropy:8.2f} {after.pass1:7.2f} {after.pass_at[8]:7.2f} "
                f"{after.distinct_right:15.2f} {'' if known is None else f'{known:.2f}':>23} {seconds:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
