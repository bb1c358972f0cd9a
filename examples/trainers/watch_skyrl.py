"""SkyRL 0.4.0, FSDP: watch the policy worker in each of its actors. A step is one optimizer step (``optim_step``)."""

from typing import Any

import torch
import torch.distributed as dist
from shared import at_responses, open_probe


def watch(worker: Any, probe: Any) -> None:
    """Observe each micro-batch between the model's forward and the backward; the loss is the worker's own."""
    if worker.model.sequence_parallel_size > 1 or worker.cfg.algorithm.enable_sample_support_replay:
        raise ValueError("entrostat needs whole responses and all logits: no sequence parallelism, no support replay")
    now: dict[str, Any] = {"step": 0}
    policy_loss, forward_backward, optim_step = worker.policy_loss_fn, worker.forward_backward, worker.optim_step

    def on_model(_module: Any, given: Any, named: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            now.update(ids=given[0], length=given[1], attention=named["attention_mask"])
            now["logits"] = output[1]["logits"].detach()  # divided by the temperature in place

    def on_loss(logp: Any, old: Any, scaled: Any, config: Any, loss_mask: Any = None, **named: Any) -> Any:
        with probe.session.guarded("observing a micro-batch"):
            length, is_packed = now["length"], worker.model.remove_microbatch_padding
            # SkyRL folds the mean over the mini-batch's tokens into the advantages; other reductions are not undone.
            is_token_mean = config.loss_reduction == "token_mean"
            probe.observe(
                logits=at_responses(now.pop("logits"), now["attention"], length, is_packed),
                labels=now["ids"][:, -length:],
                mask=loss_mask,
                advantages=scaled * now["tokens"] if is_token_mean else None,
                old_logps=old,
                rollout_logps=named.get("rollout_logprobs"),
            )
        return policy_loss(logp, old, scaled, config=config, loss_mask=loss_mask, **named)

    def on_forward_backward(data: Any, *given: Any, **named: Any) -> Any:
        device = next(worker.model.parameters()).device
        now["tokens"] = data["loss_mask"].sum().to(device, torch.float32)
        if dist.is_initialized():
            dist.all_reduce(now["tokens"])  # of the mini-batch, over all ranks
        return forward_backward(data, *given, **named)

    def on_optim_step(*given: Any, **named: Any) -> Any:
        norm = optim_step(*given, **named)
        now["step"] += 1
        probe.end_step(now["step"], {} if norm is None else {"grad_norm": norm})
        return norm

    worker.model.register_forward_hook(on_model, with_kwargs=True)
    worker.policy_loss_fn, worker.optim_step = on_loss, on_optim_step
    worker.forward_backward = on_forward_backward


def install(run: str, **options: Any) -> None:
    """At the start of your entrypoint's Ray task, before ``BasePPOExp(cfg).run()``: policy workers are watched."""
    import ray
    from skyrl.backends.skyrl_train.workers.fsdp import fsdp_worker

    class WatchedWorker(fsdp_worker.FSDPPolicyWorkerBase):  # type: ignore[misc]
        def init_model(self, *given: Any, **named: Any) -> None:
            super().init_model(*given, **named)
            watch(self, open_probe(run, **options))

    fsdp_worker.PolicyWorker = ray.remote(num_gpus=1)(WatchedWorker)
