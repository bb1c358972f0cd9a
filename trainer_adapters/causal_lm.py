"""What every adapter asks of a causal language model of transformers: where it is, and what its head does to logits."""

from typing import Any

import torch


def base_of(model: Any) -> Any:
    """The causal language model itself: without the PEFT model around it, where there is one."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def is_whole(head: Any) -> bool:
    """Whether this rank holds the whole of the head's weight: not where FSDP or ZeRO-3 has spread it."""
    return type(head.weight.data) is torch.Tensor and head.weight.numel() > 0


def logit_transform(config: Any) -> tuple[float | None, float | None]:
    """The soft-cap and the factor that the model's head applies to its logits (Gemma, Cohere, Granite, Falcon-H1)."""
    text = config.get_text_config()
    softcap = getattr(text, "final_logit_softcapping", None)
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if getattr(text, name, None) is not None:
            return softcap, float(getattr(text, name))
    scaling = getattr(text, "logits_scaling", None)
    if scaling is None:
        return softcap, None
    # HyperCLOVA X multiplies by it, Granite and MiniCPM3 divide.
    return softcap, float(scaling) if text.model_type == "hyperclovax" else 1.0 / float(scaling)
