"""prime-rl: ``[trainer.loss] type = "custom", import_path = "watch_prime_rl.loss"``. A step is one optimizer step."""

import os
from typing import Any

import torch
from prime_rl.trainer.models.layers.lm_head import FusedOutputLinear
from prime_rl.trainer.rl.loss import default_loss_fn
from shared import open_probe
from torch.optim.optimizer import register_optimizer_step_post_hook

_NOW: dict[str, Any] = {"step": 0}
_forward = FusedOutputLinear.forward


def _on_head(self: Any, hidden_states: Any, labels: Any = None, temperature: Any = None) -> Any:
    """The fused head makes no logits; here its inputs are whole. After the forward FSDP takes the weight away again."""
    output = _forward(self, hidden_states, labels, temperature)
    if "probe" not in _NOW:  # here, where all ranks are at the same place
        _NOW["probe"] = open_probe(os.environ["ENTROSTAT_RUN"])
    if torch.is_grad_enabled():
        scaled = hidden_states.detach() / temperature.unsqueeze(-1).to(hidden_states.dtype)
        _NOW.update(hidden=scaled, head=self.weight.detach().clone(), labels=labels)
    return output


def _on_step(optimizer: Any, _given: Any, _named: Any) -> None:
    if "probe" in _NOW and _NOW.setdefault("optimizer", optimizer) is optimizer:
        _NOW["step"] += 1
        _NOW["probe"].end_step(_NOW["step"])


def loss(inputs: Any, **settings: Any) -> Any:
    """prime-rl's default loss on one sample of a packed row, observed; ``settings`` as in ``DefaultLossConfig``."""
    from prime_rl.configs.trainer import DefaultLossConfig

    with _NOW["probe"].session.guarded("observing a sample"):
        # A view of the packed row, shifted right by one: its log-prob t is made at position t - 1 of the head's row.
        begin = inputs.trainer_logprobs.storage_offset()
        rows = slice(begin, begin + inputs.trainer_logprobs.numel() - 1)
        _NOW["probe"].observe(
            hidden=_NOW["hidden"][:, rows],
            head=_NOW["head"],
            labels=_NOW["labels"][:, rows],
            mask=inputs.loss_mask[None, 1:],
            advantages=inputs.advantages[None, 1:],
            old_logps=inputs.inference_logprobs[None, 1:],  # what prime-rl's ratio is held against
        )
    return default_loss_fn(inputs, DefaultLossConfig(**settings))


FusedOutputLinear.forward = _on_head
register_optimizer_step_post_hook(_on_step)
