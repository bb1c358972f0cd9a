"""The default memory: the policy's architecture and vocabulary with fewer layers and less width."""

import copy
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from entrostat.trainer_adapters.sampling.memory_lm import MemoryLM


def smaller_memory(
    policy_config: Any, *, num_layers: int = 2, width: int = 256, seed: int = 0, **options: Any
) -> MemoryLM:
    """A memory from scratch on the CPU in float32, its head at zero: before it has learned, all its logits are 0.

    Args:
        policy_config: configuration of the policy, of transformers.
        num_layers: at most; fewer where the policy has fewer.
        width: hidden size at most, in heads of up to 64.
        seed: of the initial weights; the global random generators are left as they were.
        options: of ``MemoryLM``.

    Raises:
        ValueError: this architecture cannot be made smaller by these rules; a memory must be given.
    """
    # Initial weights draw from the global generator, here the CPU's: the trainer's numbers must come out as without us.
    # (torch.manual_seed would seed those of the other devices too.)
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            config = _shrunk(policy_config.get_text_config(), num_layers, width)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        except Exception as error:
            raise ValueError(
                f"no smaller {type(policy_config).__name__} could be built ({type(error).__name__}: {error}): give a "
                "memory of your own, MemoryLM(any causal model of the same vocabulary)"
            ) from error
    nn.init.zeros_(model.get_output_embeddings().weight)
    return MemoryLM(model, **options)


def _shrunk(policy: Any, num_layers: int, width: int) -> Any:
    """A copy of the configuration with fewer layers, less width, and a head of its own."""
    config = copy.deepcopy(policy)
    width = min(width, config.hidden_size)
    num_heads = max(1, width // 64)
    head_width = width // num_heads // 2 * 2  # rotary embeddings turn pairs
    config.num_hidden_layers = num_layers = min(num_layers, config.num_hidden_layers)
    config.hidden_size = num_heads * head_width
    config.num_attention_heads = num_heads
    for name, value in (
        ("num_key_value_heads", num_heads),
        ("head_dim", head_width),
        ("intermediate_size", 4 * config.hidden_size),
    ):
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.tie_word_embeddings = False  # else a head at zero would be embeddings at zero
    return config
