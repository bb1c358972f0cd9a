"""kill -9 of trainers, of the server and of ``push`` at random moments; in the end, row by row, nothing is amiss.

``make faults`` does it many more times.
"""

import random
import time

import duckdb
import numpy as np
import pytest
from support.faults import FAULTS
from support.forked import Server
from support.forked_trainer import BATCH, LENGTH, Pusher, Trainer, batch_of
from support.patience import until
from support.service import free_port

KILLS = 2 * FAULTS or 8


@pytest.mark.slow
def test_kills_at_random_moments_lose_double_and_tear_nothing(tmp_path):
    chance = random.Random(time.time() if FAULTS else 7)
    server = Server(tmp_path / "data", free_port()).start()
    url = f"http://127.0.0.1:{server.port}"
    trainers = [Trainer(tmp_path, url, 0, 0.002)]
    pushers = []
    killed = dict.fromkeys(("server", "trainer", "push"), 0)
    for _ in range(KILLS):
        until(lambda: len(trainers[-1].returned) >= 3)
        time.sleep(chance.uniform(0.0, 0.5))
        who = chance.choices(("server", "trainer", "push"), (3, 3, 1 if pushers else 0))[0]
        killed[who] += 1
        if who == "server":
            server.kill()
            time.sleep(chance.choice([0.0, 0.3]))
            server.start()
        elif who == "trainer":
            trainers[-1].kill()
            pushers.append(Pusher(tmp_path, url))
            trainers.append(Trainer(tmp_path, url, len(trainers), chance.choice([0.0, 0.002, 0.02])))
        else:
            pushers.pop().kill()
    until(lambda: len(trainers[-1].returned) >= 3)
    trainers[-1].kill()
    for pusher in [*pushers, Pusher(tmp_path, url)]:  # what one of them holds the others leave alone
        pusher.finish()
    Pusher(tmp_path, url).finish()
    server.stop()

    assert not list((tmp_path / "spool").glob("*/*/*")), "nothing is left over"
    num_steps = sum(len(trainer.returned) for trainer in trainers)
    print(f"\n{KILLS} kills ({killed}): {len(trainers)} trainers, {num_steps} steps")  # `make faults` shows it
    with duckdb.connect(tmp_path / "data" / "entrostat.duckdb", read_only=True) as database:
        for trainer in trainers:
            compare(trainer, lambda sql: database.execute(sql).fetchnumpy())


def compare(trainer, ask):
    of_it = f"join raw.run using (run) where run_id = '{trainer.run_id}'"
    rows = ask(f"select step, seq, pos, token_id, logp, entropy from raw.token_row {of_it} order by step, seq, pos")
    steps = np.unique(rows["step"])
    # A step may have been handed over in the moment between its call's return and the line that says so.
    assert steps.tolist() in (trainer.returned, [*trainer.returned, len(trainer.returned) + 1])
    each = np.arange(BATCH * LENGTH)
    assert np.array_equal(rows["seq"].reshape(len(steps), -1), np.tile(each // LENGTH, (len(steps), 1)))
    assert np.array_equal(rows["pos"].reshape(len(steps), -1), np.tile(each % LENGTH, (len(steps), 1)))
    expected = [truth(trainer.seed, int(step)) for step in steps]
    assert np.array_equal(rows["token_id"], np.concatenate([ids for ids, _, _ in expected]))
    for name, column in (("logp", 1), ("entropy", 2)):
        right = np.concatenate([found[column] for found in expected])
        assert np.abs(rows[name] - right).max() <= 1e-4, name  # the store keeps four decimals
    parts = ask(f"select step, name, count(*) as n from raw.step_part {of_it} group by step, name having n != 1")
    assert parts["step"].tolist() == [], "each signal of each step once"
    losses = ask(f"select step, state[1] as loss from raw.step_part {of_it} and name = 'trainer/loss' order by step")
    assert losses["step"].tolist() == steps.tolist()
    assert losses["loss"].tolist() == [step / 4 for step in steps]


def truth(seed, step):
    """Token ids, log-probs and entropies of a step, in float64."""
    logits, labels = batch_of(seed, step)
    logits = logits.astype(np.float64)
    logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(logps, labels[..., None], -1)[..., 0]
    return labels.ravel(), chosen.ravel(), -(np.exp(logps) * logps).sum(-1).ravel()
