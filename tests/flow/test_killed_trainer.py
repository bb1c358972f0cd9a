"""kill -9 of a training process as its last call returns: every step handed over is stored once, and right."""

import signal
import subprocess
import sys

import pytest

from entrostat.wire.client import Client
from entrostat.wire.handover import left_in

STEPS = 12
# A plain loop's probe. Its background thread gets no further than the third step, as if steps came faster than they can
# be reduced: that one and the later ones are where the training thread put them, and nowhere else.
TRAINER = f"""
import os, pathlib, signal, sys, threading
import torch
import entrostat
from entrostat.probe.reduce import Reducer
from entrostat.wire import handover

handover.is_local = lambda directory: True  # wherever the tests' folder may be
in_hand, reduce = threading.Event(), Reducer.__call__
def held_up(self, step, *given):
    if step < 3:
        return reduce(self, step, *given)
    in_hand.set()
    threading.Event().wait()
Reducer.__call__ = held_up

torch.manual_seed(0)
probe = entrostat.Probe(run="killed", url="", directory=pathlib.Path(sys.argv[1]), tokens="all", group_size=2)
for step in range(1, {STEPS} + 1):
    logits = torch.randn(4, 6, 50) * step / 10
    labels = torch.randint(0, 50, (4, 6))
    probe.observe(
        logits=logits, labels=labels, mask=torch.ones(4, 6), advantages=torch.tensor([1.0, -1.0, 0.5, -0.5]),
        rewards=torch.tensor([1.0, 0.0, 1.0, 0.0]), groups=torch.tensor([0, 0, 1, 1]),
    )
    entropy = torch.distributions.Categorical(logits=logits.double()).entropy().mean().item()
    os.write(1, f"{{entropy!r}}\\n".encode())
    logits.zero_()
    probe.end_step(step, {{"loss": step / 4}})
    if step == 3:
        assert in_hand.wait(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_step_that_was_handed_over_is_stored_once_and_right(server, tmp_path):
    spool = tmp_path / "spool"
    trainer = subprocess.run(
        [sys.executable, "-c", TRAINER, str(spool)], capture_output=True, text=True, check=False, timeout=600
    )
    assert trainer.returncode == -signal.SIGKILL, trainer.stderr
    (stream,) = (path.parent for path in spool.rglob("open.json"))
    assert len(left_in(stream)) == STEPS - 2

    for num_sent in (STEPS - 1, 0):  # the rows of the first two in one batch
        done = subprocess.run(
            [sys.executable, "-m", "entrostat.cli.main", "push", str(spool), "--url", server.url],
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"sent {num_sent} batches" in done.stdout

    client = Client(server.url)
    rows = client.sql("select step, entropy_mean, reward_mean, num_tokens from step order by step")[0].to_pylist()
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    entropy = [float(line) for line in trainer.stdout.split()]
    assert [row["entropy_mean"] for row in rows] == pytest.approx(entropy, rel=1e-5)
    assert {(row["reward_mean"], row["num_tokens"]) for row in rows} == {(0.5, 24)}
    told = client.sql("select step, value from step_metric where name = 'trainer/loss' order by step")[0].to_pylist()
    assert [(r["step"], r["value"]) for r in told] == [(step, step / 4) for step in range(1, STEPS + 1)]
    tokens = client.sql("select step, count(*) as n, count(distinct (seq, pos)) as d from token group by step")[0]
    assert {(r["n"], r["d"]) for r in tokens.to_pylist()} == {(24, 24)}
    said = client.sql("select step from event where message like '%killed%' order by step")[0].to_pylist()
    assert [row["step"] for row in said] == list(range(3, STEPS + 1))
    assert not list(spool.rglob("*.step"))
