"""slime: a loss function and a hook by their paths on the command line. A step is one ``train_one_step``.

``--loss-type custom_loss --custom-loss-function-path watch_slime.loss
--custom-megatron-before-train-step-hook-path watch_slime.before_step``
"""

import atexit
import os
from typing import Any

from shared import open_probe
from torch.nn.utils.rnn import pad_sequence

_HERE: dict[str, Any] = {"step": 0, "seen": False}


def loss(args: Any, batch: Any, logits: Any, sum_of_sample_mean: Any) -> Any:
    """slime's own policy loss; the responses of the packed row [1, T, V] are observed one to a row."""
    from slime.backends.megatron_utils.loss import policy_loss_function

    with _HERE["probe"].session.guarded("observing a micro-batch"):
        rows, ends = [], 0
        for total, length in zip(batch["total_lengths"], batch["response_lengths"], strict=True):
            ends += total
            rows.append(logits.detach()[0, ends - length - 1 : ends - 1])  # made at the position before
        responses = [t[-n:] for t, n in zip(batch["unconcat_tokens"], batch["response_lengths"], strict=True)]
        _HERE["probe"].observe(
            logits=padded(rows),
            labels=padded(responses),
            mask=padded(batch["loss_masks"]),
            advantages=padded(batch["advantages"]),
            old_logps=padded(batch.get("log_probs")),
            rollout_logps=padded(batch.get("rollout_log_probs")),
            temperature=args.rollout_temperature,
        )
        _HERE["seen"] = True
    return policy_loss_function(args, batch, logits, sum_of_sample_mean)


def padded(values: Any) -> Any:
    """Tensors [T_i, ...] -> [B, T, ...] with zeros; None where there are none."""
    return pad_sequence(list(values), batch_first=True) if values else None


def before_step(args: Any, rollout_id: int, step_id: int, *_model_and_optimizer: Any) -> None:
    """The step before is over; the first time, this rank's probe is opened."""
    if "probe" not in _HERE:
        sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        if any(getattr(args, name) > 1 for name in sizes) or args.recompute_loss_function:
            raise ValueError(f"entrostat needs all logits, once: {', '.join(sizes)} of 1, no recompute_loss_function")
        _HERE["probe"] = open_probe(os.environ["ENTROSTAT_RUN"])
        atexit.register(end)
    end()


def end() -> None:
    """What was observed since the last call is one step."""
    if _HERE["seen"]:
        _HERE["step"] += 1
        _HERE["probe"].end_step(_HERE["step"])
        _HERE["seen"] = False
