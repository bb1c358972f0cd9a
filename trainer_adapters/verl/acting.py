"""Interventions inside verl's own policy loss: its vanilla loss is called with other advantages, ratios and clip range.

verl's ``ppo_loss`` takes the policy loss from a registry by its name. While something is switched on, ``vanilla`` there
is a function of ours for the time of the call, which hands verl's own function what the transforms made of its
arguments, and adds their penalty, aggregated by verl. So verl's aggregation, dual clip, rollout correction and metrics
stay, and its entropy and KL terms see nothing of it. With nothing on, the registry is left alone.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from entrostat.interventions.casp import CaspParams, above_own_quantile
from entrostat.interventions.methods import METHODS
from entrostat.interventions.policy_loss import applied, tokens_of
from entrostat.interventions.transform import GroupFacts, Phase, Tokens, Transform
from entrostat.trainer_adapters.board import Board
from entrostat.trainer_adapters.verl.micro_batch import Rows

VANILLA = "vanilla"
_NO_DUAL_CLIP = 1e9
_ELSEWHERE = {
    "dlc": "the rollout engine samples, in other processes: see the vLLM adapter",
    "scope": "verl's reference policy gives the log-prob of the sampled token alone, not the distribution",
    "selective_kl": "verl's reference policy gives the log-prob of the sampled token alone, not the distribution",
    "stop": "verl's driver decides when training ends, a worker cannot: stop the job",
    "save_checkpoint": "verl's driver decides when to save, a worker cannot: trainer.save_freq",
}


def refusals(config: Any, engine: Any) -> dict[str, str]:
    """The interventions that this actor cannot have, and why.

    Args:
        config: verl's ``ActorConfig``.
        engine: verl's ``FSDPEngineWithLMHead``.
    """
    found = dict(_ELSEWHERE)
    mode = config.policy_loss.get("loss_mode", VANILLA)
    if mode != VANILLA:
        reason = f"actor.policy_loss.loss_mode={mode}: only verl's vanilla loss is opened for interventions"
        found |= {m.name: reason for m in METHODS if m.name not in found}
    no_logits = why_no_logits(engine)
    if no_logits is not None:
        found.setdefault("casp", f"{no_logits}, and so no candidates")
    return found


def why_no_logits(engine: Any) -> str | None:
    """Why the probe finds no whole logits in this engine; None where it does."""
    if getattr(engine.engine_config, "use_fused_kernels", False) or engine.model_config.use_fused_kernels:
        return "with use_fused_kernels there are no logits"
    if is_split(engine):
        return "with ulysses_sequence_parallel_size above 1 each rank has the logits of a part of the tokens"
    return None


def is_split(engine: Any) -> bool:
    """Whether a sequence's tokens are spread over ranks in the forward."""
    return int(getattr(engine.engine_config, "ulysses_sequence_parallel_size", 1)) > 1


@dataclass(frozen=True, slots=True)
class Given:
    """What the forward left for the methods; None where there is none.

    Args:
        entropy: [B, T] nats, with gradient.
        is_top1: [B, T] bool.
        rows: the logits, with gradient.
        groups: [B] the same number for responses to the same prompt.
        facts: what whole groups say, where this rollout's were asked.
    """

    entropy: Tensor | None = None
    is_top1: Tensor | None = None
    rows: Rows | None = None
    groups: Tensor | None = None
    facts: GroupFacts = field(default_factory=GroupFacts)

    def lacks(self, name: str) -> bool:
        """Whether a method has to wait for the next rollout, whose groups will have been asked."""
        if name == "iac":
            return self.facts.num_others is None
        return name == "ppl_shaping" and self.facts.ln_ppl_z is None


def wants_entropy(board: Board) -> bool:
    """Whether something that is on needs the entropy with its gradient."""
    return any("entropy" in transform.needs for transform in board.transforms)


def act(loss_function: Callable[..., Any], call: Mapping[str, Any], changed: Callable[..., Any]) -> Any:
    """verl's ``ppo_loss``, called while ``changed(original, **arguments)`` stands in for its vanilla policy loss."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    original = POLICY_LOSS_REGISTRY[VANILLA]

    def standing_in(**arguments: Any) -> Any:
        return changed(original, **arguments)

    with _replaced(POLICY_LOSS_REGISTRY, VANILLA, standing_in):
        return loss_function(**call)


@contextlib.contextmanager
def _replaced(registry: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    original, registry[name] = registry[name], value
    try:
        yield
    finally:
        registry[name] = original


def changed_loss(board: Board, given: Given, original: Callable[..., Any], call: Mapping[str, Any]) -> Any:
    """verl's vanilla policy loss of what the transforms made of its arguments, and their penalty.

    Args:
        board: what is in force; its states and counts go on.
        given: what the forward left for the methods.
        original: verl's function.
        call: its arguments, by keyword: old_log_prob, log_prob, advantages, response_mask [B, T], loss_agg_mode,
            config, and rollout_is_weights.

    Raises:
        ValueError: a method's needs are not met; nothing has changed then.
    """
    from verl.trainer.ppo.core_algos import agg_loss

    config, mask = call["config"], call["response_mask"]
    ready = tuple(transform for transform in board.transforms if not given.lacks(transform.name))
    before = _tokens(board, given, call)
    after, states = applied(before, ready, board.states)
    arguments = dict(call)
    if _has(ready, Phase.ratio):
        arguments["log_prob"] = call["log_prob"] + (after.log_ratio - before.log_ratio)
    if _has(ready, Phase.advantage, Phase.token_mask):
        arguments["advantages"] = (after.advantage * after.weight).to(call["advantages"].dtype)
    if (after.eps_low, after.eps_high) != (before.eps_low, before.eps_high):
        arguments["config"] = _with_clip(config, after)
    loss, metrics = original(**arguments)
    if _has(ready, Phase.penalty):
        loss = loss + agg_loss(after.penalty, mask, call["loss_agg_mode"], **config.global_batch_info)
    board.states |= states
    board.count(after.counts)
    return loss, metrics


def clip_range(config: Any) -> tuple[float, float]:
    """verl's lower and upper clip range."""
    low, high = config.clip_ratio_low, config.clip_ratio_high
    return config.clip_ratio if low is None else low, config.clip_ratio if high is None else high


def _tokens(board: Board, given: Given, call: Mapping[str, Any]) -> Tokens:
    eps_low, eps_high = clip_range(call["config"])
    return tokens_of(
        call["log_prob"],
        call["advantages"],
        call["response_mask"],
        old_logp=call["old_log_prob"],
        eps_low=eps_low,
        eps_high=eps_high,
        entropy=given.entropy,
        is_top1=given.is_top1,
        top_logps=_candidates(board, given, call),
        groups=given.groups,
        facts=given.facts,
    )


def _candidates(board: Board, given: Given, call: Mapping[str, Any]) -> Tensor | None:
    """[B, T, N] log-probs of the policy's candidates, on the tokens where CaSP may act; 0 elsewhere."""
    if "casp" not in board.active or given.rows is None or given.entropy is None:
        return None
    params = CaspParams(**board.active["casp"])
    mask = call["response_mask"] != 0
    acts = above_own_quantile(given.entropy.detach(), mask, params.tau) & (call["advantages"] > 0)
    tokens = acts.reshape(-1).nonzero().squeeze(1)
    found = given.rows.candidate_logps(tokens, params.num_candidates).to(call["log_prob"].dtype)
    empty = torch.zeros(acts.numel(), found.shape[1], dtype=found.dtype, device=found.device)
    return empty.index_put((tokens,), found).view(*acts.shape, -1)


def _has(transforms: tuple[Transform, ...], *phases: Phase) -> bool:
    return any(transform.phase in phases for transform in transforms)


def _with_clip(config: Any, tokens: Tokens) -> Any:
    """A copy of verl's frozen settings with another clip range; no clip at all where a method asks for none."""
    copied = copy.copy(config)
    settings = {"clip_ratio_low": tokens.eps_low, "clip_ratio_high": tokens.eps_high}
    if tokens.eps_high == torch.inf:
        settings["clip_ratio_c"] = _NO_DUAL_CLIP
    for name, value in settings.items():
        object.__setattr__(copied, name, value)
    return copied
