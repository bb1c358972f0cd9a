"""A process of its own, or one of several: verl's worker trains the tiny policy; whether we are in is verl's affair.

    ENTROSTAT_VERL=1 torchrun --nproc-per-node 2 -m peers.verl.train_worker POLICY OUT

Nothing of ours is imported here: verl loads the plugin by its entry point, or does not.
"""

import sys
from functools import partial
from pathlib import Path

import torch
import verl  # noqa: F401  first, as in verl's own scripts
from peers.verl import engine as tiny
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

NUM_MINI_BATCHES = 2


def rows_of(rank, world_size, num):
    """A rank's responses: groups are split over ranks, as verl's balancing of lengths does it."""
    return list(range(rank, num, world_size))


def main(policy, out):
    torch.distributed.init_process_group("gloo")  # verl's own call would name the backend of the "cpu" twice
    model_config, engine_config, optimizer_config = tiny.configs(policy)
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model", model_config=model_config, engine_config=engine_config,
            optimizer_config=optimizer_config, checkpoint_config=CheckpointConfig(),
        )
    )  # fmt: skip
    worker.reset()
    worker.set_loss_fn(partial(ppo_loss, config=tiny.actor_config()))
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    num = NUM_MINI_BATCHES * tiny.NUM_RESPONSES
    mine = tiny.taken(tiny.sequences(0, num), rows_of(rank, world_size, num))
    data = tiny.as_data(mine, global_batch_size=tiny.NUM_RESPONSES, micro_batch_size_per_gpu=2)
    tu.assign_non_tensor(data, mini_batch_size=tiny.NUM_RESPONSES, epochs=1, dataloader_kwargs={"shuffle": False})
    output = worker.train_mini_batch(data=data)
    weights = tiny.weights(worker.engine)
    if rank == 0:
        metrics = {k: v for k, v in tu.get(output, "metrics").items() if k == "grad_norm" or k.startswith("actor/")}
        torch.save({"weights": weights, "metrics": tiny.numbers(metrics)}, Path(out))
    run = getattr(worker.engine, "_entrostat_run", None)
    if run is not None:
        run.session.sender.flush(3.0)  # to disk, for nobody answers: Ray's workers are ended without notice
    print("watched" if run is not None else "not watched", "entrostat.trainer_adapters.verl.taps" in sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])
