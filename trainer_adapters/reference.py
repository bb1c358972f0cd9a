"""The policy that SCOPE and its relatives hold tokens to."""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from entrostat.probe.selected_rows import Head


@dataclass(frozen=True, slots=True)
class FrozenCopy:
    """``attach(trainer, reference=FrozenCopy())``: the policy as it is now, kept for the run.

    Args:
        device: where it lives, for example ``"cpu"``; None: where the policy is.
        dtype: its precision, for example ``torch.bfloat16``; None: the policy's.
    """

    device: str | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A causal language model of transformers that is not trained.

    Args:
        causal_lm: the model; with ``adapted`` its adapter is switched off while it speaks.
        kind: for the run's record.
        adapted: the PEFT model around ``causal_lm``; None where it is a model of its own.
    """

    causal_lm: Any
    kind: str
    adapted: Any = None

    @torch.no_grad()
    def hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Last hidden states [B, L, d], on the reference's own device. Draws no random numbers: no dropout."""
        device = next(self.causal_lm.parameters()).device
        with self._speaking():
            output = self.causal_lm.base_model(
                input_ids=input_ids.to(device), attention_mask=attention_mask.to(device), use_cache=False
            )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def head(self, like: Head) -> Head:
        """Its own head, with the policy's temperature and transforms of the logits."""
        found = self.causal_lm.get_output_embeddings()
        return replace(like, weight=found.weight.detach(), bias=None if found.bias is None else found.bias.detach())

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        was_training = self.causal_lm.training
        off = contextlib.nullcontext() if self.adapted is None else self.adapted.disable_adapter()
        with off:
            self.causal_lm.eval()
            try:
                yield
            finally:
                self.causal_lm.train(was_training)


def reference_of(trainer: Any, given: nn.Module | FrozenCopy | None) -> Reference | None:
    """The reference: what the user gives, else the trainer's own, else the base model under a PEFT adapter, else none.

    Args:
        trainer: of TRL, before the probe has put its taps in.
        given: a model (moved nowhere, only put into eval), a ``FrozenCopy``, or None.

    Raises:
        TypeError: ``given`` is none of these, or not a causal language model of transformers.
    """
    model = trainer.model
    is_adapted = hasattr(model, "peft_config")
    if isinstance(given, FrozenCopy):
        if is_adapted:
            raise TypeError("reference=FrozenCopy(): under a PEFT adapter the base model is the reference, and is free")
        return Reference(_copy_of(model, given), "frozen copy")
    if given is not None:
        if not hasattr(given, "get_output_embeddings") or not hasattr(given, "base_model"):
            raise TypeError(
                f"reference={type(given).__name__}: give a causal language model of transformers, an "
                "entrostat.FrozenCopy(), or nothing"
            )
        return Reference(given.requires_grad_(False).eval(), "given")
    own = getattr(trainer, "ref_model", None)
    if own is not None:
        return Reference(trainer.accelerator.unwrap_model(own), "trainer's own")
    if is_adapted:
        return Reference(model.get_base_model(), "base model", adapted=model)
    return None


def _copy_of(model: Any, wanted: FrozenCopy) -> Any:
    made = copy.deepcopy(model).requires_grad_(False).eval()
    if wanted.device is not None or wanted.dtype is not None:
        made = made.to(device=wanted.device, dtype=wanted.dtype)
    return made
