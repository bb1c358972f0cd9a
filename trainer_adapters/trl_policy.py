"""TRL's GRPOTrainer and RLOOTrainer (1.15 and later): what is tapped, where, and why it changes no number.

TRL fuses the head into the loss, so logits never exist. Four places are wrapped on the trainer's instance; with no
intervention on, all of them pass on exactly what the original returned:

- ``_calculate_rewards``: the rewards of a generation, gathered by TRL over all ranks;
- ``_generate_and_score_completions``: adds ``entrostat_*`` columns to the batch, which TRL shuffles and splits with the
  rest and otherwise ignores: afterwards each response still knows its prompt and reward;
- ``_compute_loss``: marks that a loss is being computed, and on which inputs;
- ``_get_per_token_logps_and_entropies``: the log-probs and entropies of the loss's own forward.

The hidden states come from a hook on the backbone during that same forward; the fused head is asked for the outputs
TRL's kernel gives beside the two that TRL uses (its log-probs and gradients are the same to the bit; a test shows it).
With ``own_head`` that one forward goes through ours (``trl_head.py``), to float precision.
"""

import functools
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from entrostat.interventions.iac import num_others
from entrostat.interventions.methods import METHODS
from entrostat.interventions.ppl_shaping import ln_ppl, z_in_group
from entrostat.interventions.transform import GroupFacts
from entrostat.probe.capture import Observed, capture
from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.selected_rows import Head
from entrostat.probe.text.decode import Texts, texts_of
from entrostat.probe.token_stats import TokenStats, from_hidden
from entrostat.trainer_adapters.board import Board
from entrostat.trainer_adapters.causal_lm import base_of, is_whole, logit_transform
from entrostat.trainer_adapters.hooks import ATTACH, TRL, check
from entrostat.trainer_adapters.reference import Reference
from entrostat.trainer_adapters.sampling.trl_generation import check_generation
from entrostat.trainer_adapters.session import Session
from entrostat.trainer_adapters.trl_head import OwnHead, Scored, check_head
from entrostat.trainer_adapters.trl_loss import Forward, TrlLoss
from entrostat.wire.errors import AttachError
from entrostat.wire.messages import Mode

if TYPE_CHECKING:
    from trl import GRPOTrainer

_TAPPED = (
    "_calculate_rewards",
    "_generate_and_score_completions",
    "_compute_loss",
    "_get_per_token_logps_and_entropies",
)
_HEAD_OUTPUTS = ("log_probs", "entropy", "log_sum_sq_probs", "is_top1")
_PROMPT, _REWARD, _TRUNCATED = "entrostat_prompt", "entrostat_reward", "entrostat_truncated"
_IMAGES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip
_OTHERS, _LN_PPL_Z = "entrostat_others", "entrostat_ln_ppl_z"


class PolicyTap:
    """The taps on one trainer. Without a session (before ``train``, after ``detach``) they only pass on.

    Args:
        trainer: a ``GRPOTrainer`` or ``RLOOTrainer``.
        board: the interventions in force; with none, everything is passed on to the bit.
        reference: for the methods that need one.
        own_head: candidates that our head keeps in TRL's place; None: TRL's own head.

    Raises:
        AttachError: a private method that is tapped has moved, or our head cannot stand in; names the version or the
            reason, and the way out.
    """

    def __init__(
        self,
        trainer: "GRPOTrainer",
        board: Board | None = None,
        reference: Reference | None = None,
        own_head: int | None = None,
    ) -> None:
        self.trainer = trainer
        self.board, self.reference = board or Board(), reference
        self.loss = TrlLoss(trainer, self.board, reference is not None)
        self.session: Session | None = None
        self.causal_lm = base_of(trainer.model)
        self._inputs: dict[str, Any] | None = None
        self._rewards_per_func: Tensor | None = None
        self._num_rollouts = 0
        self._is_listening = False
        self._hidden: Tensor | None = None
        self._head: Any = None
        self._num_candidates = own_head
        self._scored: Scored | None = None
        self._generator: torch.Generator | None = None
        self._original_forward: Any = None
        self._hook: torch.utils.hooks.RemovableHandle | None = None
        check(TRL, [ATTACH], trainer)
        if own_head is not None:
            check_head(trainer)

    @property
    def temperature(self) -> float:
        """What TRL divides the logits by."""
        return float(self.trainer.temperature)

    # Installing and removing ------------------------------------------------------------------------------------

    def install(self) -> None:
        """Put the taps in place; they act on the next batch."""
        from trl.trainer.utils import add_fused_lm_head

        self._original_forward = self.causal_lm.__dict__.get("forward")
        kwargs: dict[str, Any] = {"temperature": self.trainer.temperature, "outputs": _HEAD_OUTPUTS}
        if hasattr(self.trainer.args, "cast_lm_head_to_fp32"):
            kwargs["cast_lm_head_to_fp32"] = self.trainer.args.cast_lm_head_to_fp32
        add_fused_lm_head(self.causal_lm, **kwargs)
        self._listen_to_head()
        self._hook = self.causal_lm.base_model.register_forward_hook(self._on_backbone)
        for name in _TAPPED:
            original = getattr(self.trainer, name)
            tapped = functools.wraps(original)(functools.partial(getattr(self, f"_on{name}"), original))
            setattr(self.trainer, name, tapped)

    def remove(self) -> None:
        """Leave the trainer as it was found."""
        for name in _TAPPED:
            self.trainer.__dict__.pop(name, None)
        if self._original_forward is not None:
            self.causal_lm.forward = self._original_forward
        if self._hook is not None:
            self._hook.remove()
        self.session = None

    def _listen_to_head(self) -> None:
        fused = self.causal_lm.forward
        own = None if self._num_candidates is None else OwnHead(fused, self._num_candidates, self._say_once)

        # The signature must stay: `generate` validates its arguments against it.
        @functools.wraps(fused)
        def forward(_self: Any, *args: Any, **kwargs: Any) -> Any:
            if not (self._is_listening and kwargs.get("fused_lm_head")):
                return fused(*args, **kwargs)
            if own is None:
                self._head = fused(*args, **kwargs)
            else:
                self._head = own.forward(*args, **kwargs)
                self._scored = own.take()
            return self._head

        self.causal_lm.forward = types.MethodType(forward, self.causal_lm)

    # What the trainer calls -------------------------------------------------------------------------------------

    def _on_calculate_rewards(self, original: Any, *args: Any, **kwargs: Any) -> Tensor:
        rewards_per_func: Tensor = original(*args, **kwargs)
        self._rewards_per_func = rewards_per_func
        return rewards_per_func

    def _on_generate_and_score_completions(self, original: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        output: dict[str, Any] = original(*args, **kwargs)
        if self.session is not None and self.trainer.model.training:
            with self.session.guarded("reading the rewards of a generation"):
                output = {**output, **self._response_columns(output)}
            if self.session.options.mode != Mode.observe:
                with self.session.guarded("reading what the groups say"):
                    output = {**output, **self._group_columns(output)}
        return output

    def _on_compute_loss(self, original: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        # A copy: what an intervention changes must be gone when TRL uses the batch again (num_iterations > 1).
        self._inputs = dict(inputs)
        try:
            loss: Tensor = original(model, self._inputs, *args, **kwargs)
            return self.loss.finish(loss)
        finally:
            self._inputs = None
            self.loss.restore()

    def _on_get_per_token_logps_and_entropies(self, original: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        # Old and reference log-probs go through here too, without gradients or without entropies.
        is_loss = self._inputs is not None and torch.is_grad_enabled() and bool(kwargs.get("compute_entropy"))
        if self.session is None or not is_loss:
            result: tuple[Any, ...] = original(*args, **kwargs)
            return result
        self._is_listening = True
        try:
            result = original(*args, **kwargs)
        finally:
            self._is_listening = False
        with self.session.guarded("observing a micro-batch"):
            self._observe(result[0], result[1])
        if self.board.transforms and self.trainer.model.training:
            result = (self._act(result[0], result[1], args, kwargs), *result[1:])
        self._hidden = self._head = self._scored = None
        return result

    def _on_backbone(self, _module: torch.nn.Module, _args: Any, output: Any) -> None:
        if self._is_listening:
            self._hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state

    # Acting -----------------------------------------------------------------------------------------------------

    def refusals(self) -> dict[str, str]:
        """The interventions that this trainer cannot have, and why."""
        reasons = {m.name: self.loss.refusal(m.name, m.phase) for m in METHODS}
        try:
            check_generation(self.trainer, {})
        except AttachError as error:
            reasons["dlc"] = str(error)
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def about_interventions(self) -> dict[str, Any]:
        """For the run's record."""
        return {"cannot": self.refusals(), "reference": None if self.reference is None else self.reference.kind}

    def take_counts(self) -> dict[str, float]:
        """What the interventions tell of the step that ended; says once where one did nothing."""
        counts = self.board.take_counts()
        if counts.get("kl_cov_tokens") and not counts.get("kl_cov_moved") and self.session is not None:
            self.session.warn_once(
                "kl_cov does nothing: every ratio is 1, and there its penalty has no gradient. Let a rollout serve "
                "several updates: num_iterations above 1, or steps_per_generation above gradient_accumulation_steps"
            )
        return counts

    def _act(self, logp: Tensor, entropy: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The log-probs that TRL goes on with. What fails is taken down and said, and the step is as without it."""
        assert self.session is not None
        assert self._inputs is not None
        inputs = self._inputs
        mask = self._loss_mask(inputs)
        num_positions = mask.shape[1]
        hidden = None if self._hidden is None else self._hidden[:, -num_positions - 1 : -1]
        seen = Forward(
            logp=logp,
            entropy=entropy,
            mask=mask,
            is_top1=self._head.is_top1[:, -num_positions:] if self._head is not None else None,
            hidden=hidden,
            head=self._policy_head(),
            candidates=None if self._scored is None else self._scored.candidates(num_positions),
            reference_hidden=functools.partial(self._reference_hidden, num_positions, args, kwargs),
            reference=self.reference,
        )
        facts = GroupFacts(inputs.get(_OTHERS), inputs.get(_LN_PPL_Z))
        try:
            return self.loss.apply(seen, inputs, facts, inputs.get(_PROMPT))
        except ValueError as error:
            self.board.fail(str(error))
            self.session.warn_once(f"interventions on the loss were taken down: {error}")
            return logp

    def _policy_head(self) -> Head | None:
        head = self.causal_lm.get_output_embeddings()
        if not is_whole(head):
            return None
        softcap, logit_scale = logit_transform(self.causal_lm.config)
        return Head(
            head.weight, head.bias, self.trainer.temperature, softcap, logit_scale, self._head_dtype(head.weight)
        )

    def _reference_hidden(self, num_positions: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """[B, T, d] of the reference on the loss's own inputs."""
        assert self.reference is not None
        if images := [name for name in _IMAGES if kwargs.get(name) is not None]:
            raise ValueError(f"a reference is asked about text only, and this batch has {', '.join(images)}")
        _model, input_ids, attention_mask, _ = args
        return self.reference.hidden(input_ids, attention_mask)[:, -num_positions - 1 : -1]

    def _group_columns(self, output: dict[str, Any]) -> dict[str, Tensor]:
        """What the whole group of each local response says, [B]; see ``GroupFacts``. TRL splits groups afterwards."""
        gather, group = self.trainer.accelerator.gather, self.trainer.num_generations
        num_local = output["completion_ids"].shape[0]
        first = self.trainer.accelerator.process_index * num_local
        advantages = gather(output["advantages"])
        groups = torch.arange(advantages.numel(), device=advantages.device) // group
        columns = {_OTHERS: num_others(advantages > 0, groups)}
        if "ppl_shaping" in self.board.active:
            mask = self._loss_mask(output)
            length = gather(mask.sum(1))
            columns[_LN_PPL_Z] = z_in_group(gather(self._ln_ppl(output, mask)), groups, length > 0)
        return {name: values[first : first + num_local] for name, values in columns.items()}

    def _ln_ppl(self, output: dict[str, Any], mask: Tensor) -> Tensor:
        """-mean log-prob [B] of each response under the policy that sampled; costs a forward where TRL made none."""
        if "old_logps" in output:
            sampled: Tensor = output["old_logps"]
            return -sampled / mask.sum(1).clamp(min=1)
        logp = output.get("old_per_token_logps")
        if logp is None:
            ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
            attention = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
            images = {name: output[name] for name in _IMAGES if output.get(name) is not None}
            with torch.no_grad():
                logp = self.trainer._get_per_token_logps_and_entropies(
                    self.trainer.model,
                    ids,
                    attention,
                    output["completion_ids"].shape[1],
                    batch_size=self.trainer.args.per_device_train_batch_size,
                    **images,
                )[0]
        return ln_ppl(logp, mask)

    @staticmethod
    def _loss_mask(inputs: dict[str, Any]) -> Tensor:
        """[B, T], the tokens of TRL's loss."""
        mask: Tensor = inputs["completion_mask"]
        return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]

    # Reading ----------------------------------------------------------------------------------------------------

    def _response_columns(self, output: dict[str, Any]) -> dict[str, Tensor]:
        """Prompt number, reward and truncation of each local response, [B]; the whole generation to the recorder."""
        assert self.session is not None
        assert self._rewards_per_func is not None
        trainer, ids = self.trainer, output["completion_ids"]
        num_local, group = ids.shape[0], trainer.num_generations
        weights = trainer.reward_weights.to(self._rewards_per_func.device)
        reward = (self._rewards_per_func * weights).nansum(dim=1)
        reward[self._rewards_per_func.isnan().all(dim=1)] = torch.nan
        prompt = torch.arange(reward.numel(), device=ids.device) // group
        prompt = prompt + self._num_rollouts * (reward.numel() // group)
        self._num_rollouts += 1
        if trainer.accelerator.process_index == 0:
            # TRL has gathered these over all ranks already, and reads them on the host right here itself.
            self.session.recorder.add_rollout(Rollout(reward.double().cpu().numpy(), prompt.cpu().numpy()))
        mine = slice(trainer.accelerator.process_index * num_local, (trainer.accelerator.process_index + 1) * num_local)
        ends = torch.isin(ids, torch.tensor(self._end_tokens(), device=ids.device)) & (output["completion_mask"] != 0)
        return {_PROMPT: prompt[mine], _REWARD: reward[mine], _TRUNCATED: ~ends.any(dim=1)}

    def _end_tokens(self) -> list[int]:
        known = getattr(self.trainer, "eos_token_ids", None)
        if known is None:
            known = self.trainer.model.generation_config.eos_token_id
        return [known] if isinstance(known, int) else list(known or [])

    def _observe(self, logp: Tensor, entropy: Tensor) -> None:
        assert self.session is not None
        assert self._inputs is not None
        inputs, options = self._inputs, self.session.options
        mask = self._loss_mask(inputs)
        num_positions = mask.shape[1]
        seen = Observed(
            logp=logp,
            entropy=entropy,
            mask=mask,
            token_ids=inputs["completion_ids"],
            advantages=inputs["advantages"],
            log_ratio=self._log_ratio(logp, mask, inputs),
            is_top1=self._head.is_top1[:, -num_positions:] if self._head is not None else None,
            sum_p2=self._head.log_sum_sq_probs[:, -num_positions:].exp() if self._head is not None else None,
            hidden_norm=self._hidden_norm(num_positions),
            prompt=inputs.get(_PROMPT),
            reward=inputs.get(_REWARD),
            truncated=inputs.get(_TRUNCATED),
            prompt_ids=inputs.get("prompt_ids") if self.session.reads_texts else None,
            rollout_logp=inputs.get("sampling_per_token_logps"),
            old_logp=inputs.get("old_per_token_logps"),
        )
        budget = options.budget
        if budget is not None:
            budget = -(-budget // max(1, self.trainer.current_gradient_accumulation_steps))
        self.session.recorder.add(
            capture(
                seen,
                measure=self._measure(inputs["completion_ids"], mask),
                measure_all=self._scored is not None,
                budget=budget,
                generator=self._random(logp.device),
                keep=self.session.recorder.keep,
            )
        )

    def _log_ratio(self, logp: Tensor, mask: Tensor, inputs: dict[str, Any]) -> Tensor:
        """[B, T], or [B] where the loss has one ratio a response. 0 where TRL takes the old policy as the current."""
        with torch.no_grad():
            if "old_logps" in inputs:  # RLOO: sums over the response
                old_sum: Tensor = inputs["old_logps"]
                return (logp * mask).sum(1) - old_sum
            old = inputs.get("old_per_token_logps")
            log_ratio = torch.zeros_like(logp) if old is None else logp - old
            if getattr(self.trainer, "importance_sampling_level", "token") == "sequence":
                return (log_ratio * mask).sum(1) / mask.sum(1).clamp(min=1)
            return log_ratio

    def _hidden_norm(self, num_positions: int) -> Tensor | None:
        """[B, T] norm of the hidden state that predicts each token."""
        assert self.session is not None
        if self._hidden is None or "covariance" in self.session.definitions.without:
            return None
        hidden = self._hidden.detach()[:, -num_positions - 1 : -1]
        norm: Tensor = torch.linalg.vector_norm(hidden, dim=-1, dtype=torch.float32)
        return norm

    def _say_once(self, message: str) -> None:
        if self.session is not None:
            self.session.warn_once(message)

    def _measure(self, token_ids: Tensor, mask: Tensor) -> Any:
        """Candidates from the pass of our head; else from the tapped hidden states, with the trainer's temperature."""
        assert self.session is not None
        if "candidates" in self.session.definitions.without:
            return None
        if self._scored is not None:
            return self._scored.measure(mask.shape[1])
        head = self.causal_lm.get_output_embeddings()
        if self._hidden is None or not is_whole(head):
            self.session.warn_once("no candidates: the hidden states or the head's weight are not whole on this rank")
            return None
        num_positions = mask.shape[1]
        # Position t is predicted from the hidden state before it.
        hidden = self._hidden.detach()[:, -num_positions - 1 : -1]
        hidden = hidden.reshape(-1, hidden.shape[-1])
        labels = token_ids.masked_fill(mask == 0, -100).reshape(-1)
        dtype = self._head_dtype(head.weight)
        softcap, logit_scale = logit_transform(self.causal_lm.config)

        def measure(rows: Tensor) -> TokenStats:
            return from_hidden(
                hidden[rows].to(dtype),
                head.weight.detach().to(dtype),
                labels[rows],
                bias=None if head.bias is None else head.bias.detach().to(dtype),
                temperature=self.trainer.temperature,
                softcap=softcap,
                logit_scale=logit_scale,
                n=self.session.options.candidates if self.session else 8,
            )

        return measure

    def _head_dtype(self, weight: Tensor) -> torch.dtype:
        """The precision in which the trainer itself multiplies with the head."""
        if getattr(self.trainer.args, "cast_lm_head_to_fp32", False):
            return torch.float32
        mixed = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.trainer.accelerator.mixed_precision)
        return mixed or weight.dtype

    def _random(self, device: torch.device) -> torch.Generator:
        # Our own: the trainer's random numbers must come out as they would without us.
        if self._generator is None or self._generator.device != device:
            self._generator = torch.Generator(device=device)
            self._generator.manual_seed(self.trainer.accelerator.process_index)
        return self._generator

    def texts(self) -> Texts:
        """Of a copy of the trainer's tokenizer."""
        from transformers import ProcessorMixin

        processing = self.trainer.processing_class
        return texts_of(processing.tokenizer if isinstance(processing, ProcessorMixin) else processing)

    def definitions(self, correct_at: float) -> Settings:
        """What the signals' definitions take from this trainer's settings."""
        return Settings(
            correct_at=correct_at,
            group_size=self.trainer.num_generations,
            eps_low=self.trainer.epsilon_low,
            eps_high=self.trainer.epsilon_high,
        )
