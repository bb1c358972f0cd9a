"""Interventions inside TRL's own loss, at three places, without a copy of it.

TRL's ``_compute_loss`` reads ``inputs["advantages"]`` after it has called ``_get_per_token_logps_and_entropies``. So,
in between, ``TrlLoss.apply``

1. replaces the advantages, by [B, T] where a method acts on tokens (a token mask is an advantage of 0);
2. changes the log-probs' gradient and leaves their value, or moves their value where a method scales the ratio;
3. sets the clip range, until the loss is there;

and ``finish`` adds the penalties to the loss, with the normaliser that the loss type has for its own tokens. The sum is
``entrostat.interventions.policy_loss`` to float precision, value and gradient; a test shows it for every loss type.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from entrostat.interventions.casp import CaspParams, above_own_quantile
from entrostat.interventions.policy_loss import applied, tokens_of
from entrostat.interventions.transform import GroupFacts, Phase, ReferenceKL, Tokens, Transform
from entrostat.probe.selected_rows import Head, candidate_logps, kl_to_reference
from entrostat.trainer_adapters.board import Board
from entrostat.trainer_adapters.reference import Reference

if TYPE_CHECKING:
    from trl import GRPOTrainer

PER_RESPONSE = frozenset({"iac", "ppl_shaping", "psr", "nsr", "w_reinforce"})
"""Methods on the advantage that give all tokens of a response the same one."""
NEED_REFERENCE = frozenset({"scope", "selective_kl"})
_CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


@dataclass(frozen=True, slots=True)
class Forward:
    """What the loss's own forward left behind.

    Args:
        logp: [B, T] with gradient, 0 on padding.
        entropy: [B, T] with gradient.
        mask: [B, T].
        is_top1: [B, T] bool.
        hidden: [B, T, d] hidden states that predict each token, with gradient; None where they are not whole.
        head: the policy's; None where its weight is not whole on this rank.
        candidates: [B, T, n] log-probs of the most likely candidates with gradient, where the pass of the loss gave
            them; None: they take a product with the head.
        reference_hidden: makes the reference's [B, T, d]; None without a reference.
        reference: it.
    """

    logp: Tensor
    entropy: Tensor
    mask: Tensor
    is_top1: Tensor | None
    hidden: Tensor | None
    head: Head | None
    candidates: Tensor | None
    reference_hidden: Callable[[], Tensor] | None
    reference: Reference | None


class TrlLoss:
    """What is on the board, applied to the batches of one trainer.

    Args:
        trainer: a ``GRPOTrainer`` or ``RLOOTrainer``.
        board: what is in force.
        has_reference: whether there is a reference model.
    """

    def __init__(self, trainer: "GRPOTrainer", board: Board, has_reference: bool) -> None:
        self.trainer, self.board, self.has_reference = trainer, board, has_reference
        self.is_rloo = any(base.__name__ == "RLOOTrainer" for base in type(trainer).__mro__)
        self._added: Tokens | None = None
        self._mask: Tensor | None = None
        self._inputs: dict[str, Any] = {}
        self._clip: tuple[float, float] | None = None

    # What it can do ---------------------------------------------------------------------------------------------

    def refusal(self, name: str, phase: Phase) -> str | None:
        """Why a method cannot act in this trainer, as a sentence; None where it can."""
        if name in NEED_REFERENCE and not self.has_reference:
            return "there is no reference model: attach with reference=entrostat.FrozenCopy() or a model"
        if self.is_rloo:
            return self._refusal_in_rloo(name, phase)
        return self._refusal_in_grpo(name, phase)

    def _refusal_in_rloo(self, name: str, phase: Phase) -> str | None:
        if phase in (Phase.advantage, Phase.token_mask, Phase.ratio) and name not in PER_RESPONSE:
            return "RLOO has one ratio and one advantage a response: nothing can act on single tokens"
        if name == "kl_cov":
            return "RLOO keeps the old log-prob of whole responses only, not of tokens"
        return None

    def _refusal_in_grpo(self, name: str, phase: Phase) -> str | None:
        trainer, kind = self.trainer, self.trainer.loss_type
        on_tokens = phase in (Phase.advantage, Phase.token_mask, Phase.ratio) and name not in PER_RESPONSE
        is_by_sequence = trainer.importance_sampling_level == "sequence"
        if phase in (Phase.clipping, Phase.ratio) and kind not in _CLIPPED:
            return f"loss_type={kind!r} has no clipped ratio; it needs one of {', '.join(_CLIPPED)}"
        if on_tokens and kind == "vespo":
            return "loss_type='vespo' weighs whole responses: nothing can act on single tokens"
        if on_tokens and trainer.off_policy_mask_threshold is not None:
            return "off_policy_mask_threshold takes one advantage a response: nothing can act on single tokens"
        if is_by_sequence and name in ("casp", "clip_cov"):
            return "importance_sampling_level='sequence' has one ratio a response, the method one a token"
        if name == "casp" and trainer.beta != 0.0:
            return "with beta other than 0, TRL's own KL term would have its gradient redirected too; scope holds it"
        return None

    # One micro-batch --------------------------------------------------------------------------------------------

    def apply(self, seen: Forward, inputs: dict[str, Any], facts: GroupFacts, groups: Tensor | None) -> Tensor:
        """The log-probs [B, T] that TRL goes on with; changes ``inputs``, which must be a copy made for this batch.

        Raises:
            ValueError: a method's needs are not met; nothing is changed then.
        """
        self._added = None
        ready = tuple(t for t in self.board.transforms if _is_ready(t, facts))
        if not ready:
            return seen.logp
        old = None if self.is_rloo else inputs.get("old_per_token_logps")
        before = tokens_of(
            seen.logp,
            inputs["advantages"],
            seen.mask,
            old_logp=old,
            eps_low=self.trainer.epsilon_low,
            eps_high=self.trainer.epsilon_high,
            entropy=seen.entropy,
            is_top1=seen.is_top1,
            top_logps=self._candidates(seen, inputs["advantages"]),
            reference_kl=_reference_kl(seen),
            groups=groups,
            facts=facts,
        )
        after, states = applied(before, ready, self.board.states)
        self.board.states |= states
        self.board.count(after.counts)
        self._added, self._mask, self._inputs = after, seen.mask, inputs
        self._clip = (self.trainer.epsilon_low, self.trainer.epsilon_high)
        self.trainer.epsilon_low, self.trainer.epsilon_high = after.eps_low, after.eps_high
        phases = {t.phase for t in ready}
        if phases & {Phase.advantage, Phase.token_mask}:
            inputs["advantages"] = self._advantages(after, inputs["advantages"], ready)
        if Phase.ratio not in phases:
            return seen.logp
        if old is None:
            # TRL would take the changed log-probs for the old ones, and a scaled ratio would be 1 again.
            inputs["old_per_token_logps"] = seen.logp.detach()
        return seen.logp + (after.log_ratio - before.log_ratio)

    def finish(self, loss: Tensor) -> Tensor:
        """TRL's loss with the penalties added; call ``restore`` afterwards in any case."""
        if self._added is None:
            return loss
        tokens, scale = self._added, 1.0
        if not self.is_rloo and self.trainer.model.training:
            scale = float(self.trainer.current_gradient_accumulation_steps)
        assert self._mask is not None
        return loss + self._aggregated(tokens.penalty, self._mask, scale) + tokens.extra / scale

    def restore(self) -> None:
        """The trainer's own clip range is back."""
        if self._clip is not None:
            self.trainer.epsilon_low, self.trainer.epsilon_high = self._clip
        self._clip, self._added, self._mask, self._inputs = None, None, None, {}

    def _advantages(self, tokens: Tokens, given: Tensor, ready: tuple[Transform, ...]) -> Tensor:
        changed = tokens.advantage * tokens.weight
        on_advantage = {t.name for t in ready if t.phase in (Phase.advantage, Phase.token_mask)}
        if given.ndim == 1 and on_advantage <= PER_RESPONSE:
            first = tokens.mask.argmax(dim=1, keepdim=True)  # the same on every token of a response
            return changed.gather(1, first).squeeze(1).to(given.dtype)
        return changed.to(given.dtype)

    def _candidates(self, seen: Forward, advantages: Tensor) -> Tensor | None:
        """[B, T, N] log-probs of the policy's candidates, on the tokens where CaSP may act; 0 elsewhere."""
        if "casp" not in self.board.active:
            return None
        params = CaspParams(**self.board.active["casp"])
        is_gain = advantages.view(len(advantages), -1) > 0  # no method on the advantage makes a loss a gain
        acts = above_own_quantile(seen.entropy.detach(), seen.mask != 0, params.tau) & is_gain
        if seen.candidates is not None and seen.candidates.shape[2] >= params.num_candidates:
            given = seen.candidates[..., : params.num_candidates].to(seen.logp.dtype)
            return torch.where(acts.unsqueeze(2), given, 0.0)
        if seen.hidden is None or seen.head is None:
            return None
        rows = acts.reshape(-1).nonzero().squeeze(1)
        hidden = seen.hidden.reshape(-1, seen.hidden.shape[-1])[rows]
        found = candidate_logps(hidden, seen.head, params.num_candidates).to(seen.logp.dtype)
        empty = torch.zeros(acts.numel(), found.shape[1], dtype=found.dtype, device=found.device)
        return empty.index_put((rows,), found).view(*acts.shape, -1)

    def _aggregated(self, per_token: Tensor, mask: Tensor, scale: float) -> Tensor:
        """As TRL aggregates its own per-token loss of this type."""
        trainer, total = self.trainer, per_token * mask
        if self.is_rloo:
            return total.sum(1).mean()
        match trainer.loss_type:
            case "grpo" | "sapo":
                return (total.sum(1) / mask.sum(1).clamp(min=1.0)).mean() / scale
            case "bnpo":
                return total.sum() / mask.sum().clamp(min=1.0) / scale
            case "dr_grpo":
                longest: int = trainer.max_completion_length
                return total.sum() / (total.shape[0] * longest) / scale
            case "luspo":
                return total.sum(1).mean() / scale
            case "dapo" | "cispo" | "vespo":
                normaliser: Tensor = (
                    self._inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
                )
                if trainer.model.training:
                    normaliser = normaliser * scale / trainer.args.steps_per_generation
                return total.sum() / normaliser
            case unknown:
                raise ValueError(f"loss_type={unknown!r} is new to this version of entrostat")


def _is_ready(transform: Transform, facts: GroupFacts) -> bool:
    # Facts are taken at generation: a batch from before the method was switched on has none.
    if transform.name == "iac":
        return facts.num_others is not None
    return transform.name != "ppl_shaping" or facts.ln_ppl_z is not None


def _reference_kl(seen: Forward) -> ReferenceKL | None:
    hidden, head, other, reference_hidden = seen.hidden, seen.head, seen.reference, seen.reference_hidden
    if hidden is None or head is None or other is None or reference_hidden is None:
        return None

    def divergence(rows: Tensor) -> Tensor:
        theirs = reference_hidden()
        theirs = theirs.reshape(-1, theirs.shape[-1])
        mine = hidden.reshape(-1, hidden.shape[-1])[rows]
        return kl_to_reference(mine, head, theirs[rows.to(theirs.device)], other.head(head))

    return divergence
