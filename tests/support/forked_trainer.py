"""A training process with a real probe, forked from one that has imported torch: it starts in milliseconds."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from support.forked import CONTEXT
from support.patience import PATIENCE_S

import entrostat
from entrostat.probe.stored_step import restore
from entrostat.wire import handover, retry
from entrostat.wire.client import Client, push

CONTEXT.set_forkserver_preload(["support.forked_trainer", "entrostat.server.run"])
BATCH, LENGTH, VOCABULARY = 4, 6, 40


def batch_of(seed, step):
    """Logits (BATCH, LENGTH, VOCABULARY) and labels (BATCH, LENGTH) of a step: the same for trainer and test."""
    rng = np.random.default_rng([seed, step])
    logits = rng.normal(size=(BATCH, LENGTH, VOCABULARY)).astype(np.float32) * 2
    return logits, rng.integers(0, VOCABULARY, size=(BATCH, LENGTH))


class Trainer:
    """Trains until it is killed; writes a line for each step whose call has returned."""

    def __init__(self, root, url, seed, pause_s):
        self.seed, self.run_id = seed, f"run-{seed}"
        self.log = Path(root) / f"returned-{seed}"
        arguments = (str(Path(root) / "spool"), url, seed, pause_s, str(self.log))
        self.process = CONTEXT.Process(target=_train, args=arguments, daemon=True)
        self.process.start()

    def kill(self):
        self.process.kill()
        self.process.join()

    @property
    def returned(self):
        """Steps whose call returned, in order."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []


def _train(spool, url, seed, pause_s, log):
    handover.is_local = lambda directory: True
    retry.LONGEST_WAIT_S = 0.5
    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - what it warns of is expected
    probe = entrostat.Probe(run=f"run-{seed}", url=url, directory=Path(spool), tokens="all", group_size=2)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    step = 0
    while True:
        step += 1
        logits, labels = batch_of(seed, step)
        probe.observe(
            logits=torch.from_numpy(logits), labels=torch.from_numpy(labels), mask=torch.ones(BATCH, LENGTH),
            advantages=torch.tensor([1.0, -1.0, 0.5, -0.5]), rewards=torch.tensor([1.0, 0.0, 1.0, 0.0]),
            groups=torch.tensor([0, 0, 1, 1]),
        )  # fmt: skip
        probe.end_step(step, {"loss": step / 4})
        os.write(written, f"{step}\n".encode())
        time.sleep(pause_s)


class Pusher:
    """``entrostat push`` in a process that may be killed in the middle."""

    def __init__(self, root, url):
        self.process = CONTEXT.Process(target=_push, args=(str(Path(root) / "spool"), url), daemon=True)
        self.process.start()

    def kill(self):
        self.process.kill()
        self.process.join()

    def finish(self):
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == 0


def _push(spool, url):
    with Client(url) as client:
        report = push(Path(spool), client, restore=restore, patience_s=PATIENCE_S)
    sys.exit("\n".join(report.problems) or 0)
