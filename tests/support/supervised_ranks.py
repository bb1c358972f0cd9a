"""Supervised training on however many ranks it is started on: python supervised_ranks.py FOLDER URL RUN TEXTS-A-RANK"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import tiny_sft

import entrostat


def train(folder, url, run, size):
    backend = {"ddp_backend": "gloo"} if "WORLD_SIZE" in os.environ else {}
    trainer = tiny_sft.sft(folder, per_device_train_batch_size=int(size), max_steps=3, learning_rate=0.05, **backend)
    entrostat.attach(trainer, url=url, directory=f"{folder}/spool", run=run)
    trainer.train()


if __name__ == "__main__":
    train(*sys.argv[1:])
