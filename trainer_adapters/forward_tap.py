"""Listening to the forwards that a loss makes through a causal language model: nothing is left when it is over."""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

OnForward = Callable[[Tensor | None, Any], None]
"""Takes the backbone's last hidden states [B, L, d], None where there is no backbone, and what the forward returned."""


@contextlib.contextmanager
def forwards(causal_lm: Any, on_forward: OnForward) -> Iterator[None]:
    """Within it, ``on_forward`` is called after each forward that gradients are wanted of; it must not raise.

    The method is wrapped, not hooked, since PEFT calls ``forward`` and not the module; the hook sits on the backbone,
    which everyone calls. Both are put in for the time of one loss: a model that the trainer makes anew
    (``model_init``), generation and evaluation are none of our concern.
    """
    hidden: list[Tensor] = []

    def on_backbone(_module: torch.nn.Module, _args: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            hidden.append(output[0] if isinstance(output, tuple) else output.last_hidden_state)

    current, own = causal_lm.forward, causal_lm.__dict__.get("forward")

    @functools.wraps(current)
    def listening(_self: Any, *args: Any, **kwargs: Any) -> Any:
        output = current(*args, **kwargs)
        if torch.is_grad_enabled():
            on_forward(hidden.pop() if hidden else None, output)
            hidden.clear()
        return output

    backbone = causal_lm.base_model
    hook = backbone.register_forward_hook(on_backbone) if backbone is not causal_lm else None
    causal_lm.forward = types.MethodType(listening, causal_lm)
    try:
        yield
    finally:
        if own is None:
            del causal_lm.forward
        else:
            causal_lm.forward = own
        if hook is not None:
            hook.remove()
