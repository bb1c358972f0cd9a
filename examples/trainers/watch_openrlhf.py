"""OpenRLHF 0.11.2: watch the trainer in each policy actor. A step is one rollout's updates (``ppo_train``)."""

import hashlib
from typing import Any

import torch
from shared import at_responses, open_probe


def watch(trainer: Any, probe: Any) -> None:
    """Observe each micro-batch between the actor's forward and the backward; nothing is replaced in the loss."""
    if trainer.strategy.ring_attn_group is not None or trainer.args.ds.tensor_parallel_size > 1:
        raise ValueError("entrostat needs whole responses: no ring attention, no tensor parallelism")
    now: dict[str, Any] = {"step": 0}
    training_step, ppo_train = trainer.training_step, trainer.ppo_train

    def on_actor(_module: Any, given: Any, named: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            now.update(ids=given[0], attention=named["attention_mask"], logits=output[1]["logits"].detach())

    def on_loss(_module: Any, given: Any, named: Any, _output: Any) -> None:
        with probe.session.guarded("observing a micro-batch"):
            experience, mask = now["experience"], named["action_mask"]
            length, is_packed = mask.shape[1], trainer.args.ds.packing_samples
            truncated = experience.truncated
            probe.observe(
                logits=at_responses(now.pop("logits"), now["attention"], length, is_packed),  # at the temperature
                labels=now["ids"][:, -length:],
                mask=mask,
                advantages=given[2],
                old_logps=given[1],
                rollout_logps=named.get("rollout_log_probs"),
                groups=torch.tensor([_number(p) for p in experience.prompts]) if experience.prompts else None,
                rewards=experience.info.get("reward"),
                truncated=None if truncated is None else truncated.bool(),
            )

    def on_training_step(experience: Any, *given: Any, **named: Any) -> Any:
        now["experience"] = experience
        return training_step(experience, *given, **named)

    def on_ppo_train(*given: Any, **named: Any) -> Any:
        status = ppo_train(*given, **named)
        now["step"] += 1
        probe.end_step(now["step"], {k: v for k, v in status.items() if isinstance(v, int | float)})
        return status

    trainer.actor.register_forward_hook(on_actor, with_kwargs=True)
    trainer.actor_loss_fn.register_forward_hook(on_loss, with_kwargs=True)
    trainer.training_step, trainer.ppo_train = on_training_step, on_ppo_train


def _number(prompt: str) -> int:
    return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:7])  # the same on all ranks


def install(run: str, **options: Any) -> None:
    """Before ``openrlhf.cli.train_ppo_ray`` runs: its policy actors are watched."""
    import ray
    from openrlhf.trainer.ray import ppo_actor

    class WatchedActor(ppo_actor.PolicyModelActor.__ray_actor_class__):  # type: ignore[misc]
        def init_model_from_pretrained(self, *given: Any, **named: Any) -> None:
            super().init_model_from_pretrained(*given, **named)
            watch(self.trainer, open_probe(run, **options))

    ppo_actor.PolicyModelActor = ray.remote(num_gpus=1)(WatchedActor)
