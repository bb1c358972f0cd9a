"""Supervised training with transformers' Trainer and TRL's SFTTrainer: what is tapped, and why it changes no number.

One method is wrapped on the trainer's instance, ``compute_loss``; it passes on what the original returned. While it
runs in training, the model's own forward is listened to (``forward_tap.py``), and what that forward has made is used:

- logits, where there are any: the statistics are those of ``from_logits``, with no second product with the head;
- log-probs and entropies, where TRL's fused head gives them (SFTTrainer, 1.15 and later); the candidates of chosen
  tokens come from the hidden states;
- neither (Liger's fused cross-entropy): every token from the hidden states, in tiles, without gradients.

The model is never asked twice. A token's position and a response's length are those of its document, whether documents
were padded or packed.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from entrostat.interventions.methods import METHODS
from entrostat.probe.capture import MeasureRows, Observed, capture
from entrostat.probe.definitions import Settings
from entrostat.probe.text.decode import Texts, texts_of
from entrostat.probe.token_stats import IGNORED, TokenStats, from_hidden, from_logits
from entrostat.trainer_adapters.board import Board
from entrostat.trainer_adapters.causal_lm import base_of, is_whole, logit_transform
from entrostat.trainer_adapters.forward_tap import forwards
from entrostat.trainer_adapters.hooks import TRANSFORMERS, check
from entrostat.trainer_adapters.session import Session
from entrostat.trainer_adapters.supervised_targets import Targets, targets_of

_NO_ADVANTAGES = "supervised training has no advantages, and its loss is no policy loss"
_BATCH = ("labels", "shift_labels", "position_ids")


class SupervisedTap:
    """The tap on one trainer. Without a session (before ``train``, after ``detach``) it only passes on.

    Args:
        trainer: a ``transformers.Trainer`` or ``SFTTrainer`` of a causal language model.
        board: the interventions in force.

    Raises:
        AttachError: ``compute_loss`` has moved; names the version and the way out.
    """

    temperature = 1.0
    """Nothing is sampled: the signals describe the model's own distribution."""

    def __init__(self, trainer: Any, board: Board | None = None) -> None:
        self.trainer, self.board = trainer, board or Board()
        self.session: Session | None = None
        self._generator: torch.Generator | None = None
        # Of the class: a loss of the user's own may take other arguments, and is handed all it is called with.
        check(TRANSFORMERS, ["attach(Trainer)"])

    # Installing and removing ------------------------------------------------------------------------------------

    def install(self) -> None:
        """Put the tap in place; it acts on the next batch."""
        original = self.trainer.compute_loss
        tapped = functools.wraps(original)(functools.partial(self._on_compute_loss, original))
        self._own, self.trainer.compute_loss = self.trainer.__dict__.get("compute_loss"), tapped

    def remove(self) -> None:
        """Leave the trainer as it was found."""
        self.trainer.__dict__.pop("compute_loss", None)
        if self._own is not None:
            self.trainer.compute_loss = self._own
        self.session = None

    # What the step boundary asks --------------------------------------------------------------------------------

    def refusals(self) -> dict[str, str]:
        """The interventions that this trainer cannot have, and why."""
        reasons = {method.name: _NO_ADVANTAGES for method in METHODS if method.make is not None}
        return reasons | {"dlc": "supervised training samples nothing"}

    def about_interventions(self) -> dict[str, Any]:
        """For the run's record."""
        return {"cannot": self.refusals(), "reference": None}

    def take_counts(self) -> dict[str, float]:
        """What the interventions tell of the step that ended; levers tell nothing."""
        return self.board.take_counts()

    def definitions(self, correct_at: float) -> Settings:
        """What the signals' definitions take from this trainer's settings."""
        return Settings(correct_at=correct_at)

    def texts(self) -> Texts | None:
        """Of a copy of the trainer's tokenizer; None where it was given none."""
        from transformers import ProcessorMixin

        processing = self.trainer.processing_class
        if processing is None:
            return None
        return texts_of(processing.tokenizer if isinstance(processing, ProcessorMixin) else processing)

    # What the trainer calls -------------------------------------------------------------------------------------

    def _on_compute_loss(self, original: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if self.session is None or not self.trainer.model.training:
            return original(model, inputs, *args, **kwargs)
        # Taken out now: the trainer pops the labels where the loss is not the model's own.
        batch = {name: inputs.get(name) for name in _BATCH}
        seen: list[bool] = []

        def on_forward(hidden: Tensor | None, output: Any) -> None:
            # A loss of the user's may ask the model again; the first answer is the one to the batch.
            if self.session is not None and not seen:
                seen.append(True)
                with self.session.guarded("observing a micro-batch"):
                    self._observe(batch, hidden, output)

        with forwards(base_of(self.trainer.model), on_forward):
            return original(model, inputs, *args, **kwargs)

    # Reading ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _observe(self, batch: dict[str, Any], hidden: Tensor | None, output: Any) -> None:
        assert self.session is not None
        hidden = None if hidden is None else hidden.detach()
        logits = getattr(output, "logits", None)
        like = logits if isinstance(logits, Tensor) else hidden
        targets = None if like is None else targets_of(batch, like.shape[1])
        if like is None or targets is None:
            self.session.warn_once("nothing is measured: the batch has no labels that fit what the model gave")
            return
        targets = Targets(targets.ids.to(like.device), targets.document.to(like.device))
        if getattr(output, "log_probs", None) is not None and output.entropy is not None:
            self._record_fused(targets, hidden, output)
        elif isinstance(logits, Tensor):
            flat = logits.detach().reshape(-1, logits.shape[-1])
            # The soft-cap and the scale are in these logits already.
            self._record_stats(targets, hidden, from_logits(flat, targets.ids.reshape(-1), n=self._num_candidates))
        elif (measure := self._from_hidden(targets, hidden)) is not None:
            self._record_stats(targets, hidden, measure(torch.arange(targets.ids.numel(), device=like.device)))
        else:
            self.session.warn_once("nothing is measured: there are no logits, and the head's weight is not whole here")

    @property
    def _num_candidates(self) -> int:
        assert self.session is not None
        return self.session.options.candidates

    def _record_fused(self, targets: Targets, hidden: Tensor | None, output: Any) -> None:
        """What TRL's fused head gives of every token; its own tensors end before the last position."""
        assert self.session is not None
        missing = targets.ids.shape[1] - output.log_probs.shape[1]
        measure = None
        if "candidates" not in self.session.definitions.without:
            measure = self._from_hidden(targets, hidden)
            if measure is None:
                self.session.warn_once("no candidates: hidden states or the head's weight are not whole on this rank")
        self._record(
            targets,
            hidden,
            pad(output.log_probs.detach(), (0, missing)),
            pad(output.entropy.detach(), (0, missing)),
            None if output.is_top1 is None else pad(output.is_top1.detach(), (0, missing)),
            None,
            measure,
            measure_all=False,
        )

    def _record_stats(self, targets: Targets, hidden: Tensor | None, stats: TokenStats) -> None:
        """Statistics of all tokens, flat."""
        assert self.session is not None
        shape = targets.ids.shape
        self._record(
            targets,
            hidden,
            stats.logp.view(shape),
            stats.entropy.view(shape),
            stats.is_top1.view(shape),
            stats.sum_p2.view(shape),
            None if "candidates" in self.session.definitions.without else stats.at,
            measure_all=True,
        )

    def _record(
        self,
        targets: Targets,
        hidden: Tensor | None,
        logp: Tensor,
        entropy: Tensor,
        is_top1: Tensor | None,
        sum_p2: Tensor | None,
        measure: MeasureRows | None,
        *,
        measure_all: bool,
    ) -> None:
        assert self.session is not None
        mask = targets.ids != IGNORED
        seen = Observed(
            logp=logp,
            entropy=entropy,
            mask=mask,
            token_ids=targets.ids.masked_fill(~mask, 0),
            is_top1=is_top1,
            sum_p2=sum_p2,
            hidden_norm=self._hidden_norm(hidden),
            document=targets.document,
        )
        budget = self.session.options.budget
        if budget is not None:
            budget = -(-budget // max(1, getattr(self.trainer, "current_gradient_accumulation_steps", 1)))
        self.session.recorder.add(
            capture(
                seen,
                measure=measure,
                measure_all=measure_all,
                budget=budget,
                generator=self._random(logp.device),
                keep=self.session.recorder.keep,
            )
        )

    def _hidden_norm(self, hidden: Tensor | None) -> Tensor | None:
        """[B, L] norm of the hidden state that predicts each target."""
        assert self.session is not None
        if hidden is None or "covariance" in self.session.definitions.without:
            return None
        norm: Tensor = torch.linalg.vector_norm(hidden, dim=-1, dtype=torch.float32)
        return norm

    def _from_hidden(self, targets: Targets, hidden: Tensor | None) -> MeasureRows | None:
        """Measures rows with the trainer's own head; None where this rank does not have all it takes."""
        causal_lm = base_of(self.trainer.model)
        head = causal_lm.get_output_embeddings()
        # An adapter on the head is not in its weight; where there are no logits, nobody else adds it either.
        if hidden is None or hasattr(head, "base_layer") or not is_whole(head):
            return None
        flat, labels, n = hidden.reshape(-1, hidden.shape[-1]), targets.ids.reshape(-1), self._num_candidates
        mixed = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.trainer.accelerator.mixed_precision)
        dtype = mixed or head.weight.dtype
        softcap, logit_scale = logit_transform(causal_lm.config)

        def measure(rows: Tensor) -> TokenStats:
            return from_hidden(
                flat[rows].to(dtype),
                head.weight.detach().to(dtype),
                labels[rows],
                bias=None if head.bias is None else head.bias.detach().to(dtype),
                softcap=softcap,
                logit_scale=logit_scale,
                n=n,
            )

        return measure

    def _random(self, device: torch.device) -> torch.Generator:
        # Our own: the trainer's random numbers must come out as they would without us.
        if self._generator is None or self._generator.device != device:
            self._generator = torch.Generator(device=device)
            self._generator.manual_seed(self.trainer.accelerator.process_index)
        return self._generator
