"""A loop of your own: ``Probe`` measures from hidden states and the head, or from logits.

::

    probe = entrostat.Probe(run="mine")
    seen = probe.observe(hidden=h, head=W, labels=y, mask=m, advantages=A, groups=g, rewards=r)
    loss = probe.policy_loss(logp, seen, old_logps=old)      # your log-probs, with gradients
    probe.end_step(step, metrics={"lr": lr})                 # what is switched on acts from the next step on
    probe.close()
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from entrostat.interventions.levers.learning_rate import LearningRateParams
from entrostat.interventions.policy_loss import Aggregation, policy_loss
from entrostat.interventions.transform import ReferenceKL, State, Transform
from entrostat.probe.capture import Observed, capture
from entrostat.probe.definitions import Settings
from entrostat.probe.text.decode import texts_of
from entrostat.probe.token_stats import TokenStats, from_hidden, from_logits
from entrostat.trainer_adapters import run_info
from entrostat.trainer_adapters.board import Board
from entrostat.trainer_adapters.boundary import switch
from entrostat.trainer_adapters.controller import Controller
from entrostat.trainer_adapters.permissions import permissions_of
from entrostat.trainer_adapters.session import Place, Session, from_environment
from entrostat.trainer_adapters.whole_weight import whole
from entrostat.wire.messages import DesiredState, Mode

_REFUSALS = {"dlc": "a loop of your own does the sampling: use entrostat.trainer_adapters.sampling.memory_lm there"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One observed micro-batch: the statistics of every token, [B, T] each where ``stats`` has them flat."""

    stats: TokenStats
    mask: Tensor
    advantages: Tensor | None
    groups: Tensor | None = None

    @property
    def entropy(self) -> Tensor:
        """[B, T] nats; NaN on padding."""
        return self.stats.entropy.view(self.mask.shape)

    @property
    def logp(self) -> Tensor:
        """[B, T] log-prob of the labels, nats, without gradient; NaN on padding."""
        return self.stats.logp.view(self.mask.shape)


class Probe:
    """A probe for a plain torch loop; everything ``entrostat.attach`` records, from the tensors you give.

    Args:
        run: the run's name; else ENTROSTAT_RUN, else made up.
        resume_step: the last step of the checkpoint the loop resumed from; None at a fresh start.
        rank: this process's rank.
        world_size: number of ranks.
        session_id: the same 32 hex digits on all ranks of one start; needed where ``world_size`` is above 1.
        group_size: responses per prompt; groups with fewer present in a step are left out of group signals.
        eps_low: lower clip range, for the clip fractions and ``policy_loss``.
        eps_high: upper clip range.
        config: your settings, plain JSON values, kept with the run.
        tokenizer: for the signals that read texts: of transformers (it is copied), or a function from a list of token
            ids to text, which is called on another thread. None: those signals are absent.
        **options: url, token, directory, tags, tokens, candidates, keep_candidates, baseline_steps, correct_at,
            without, answer_pattern, keep_text, mode, allow, bounds, grace_s and on_lost, as in ``entrostat.attach``.

    Raises:
        AttachError: ``allow`` names something that a loop of your own cannot have.
        ValueError: an option out of range, or several ranks without a common ``session_id``.
        TypeError: ``tokenizer`` is neither a tokenizer nor a function.
    """

    def __init__(
        self,
        run: str | None = None,
        *,
        resume_step: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        session_id: str | None = None,
        group_size: int | None = None,
        eps_low: float = 0.2,
        eps_high: float = 0.2,
        config: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        **options: Any,
    ) -> None:
        if world_size > 1 and (session_id is None or run is None):
            raise ValueError("with several ranks give all of them the same run and session_id (32 hex digits)")
        chosen = from_environment(run=run, **options)
        texts = None if tokenizer is None else texts_of(tokenizer)
        place = Place(
            run_id=chosen.run or run_info.new_run_id("loop"),
            session_id=session_id or run_info.new_id(),
            rank=rank,
            world_size=world_size,
            resume_step=resume_step,
        )
        definitions = Settings(chosen.correct_at, group_size, eps_low, eps_high)
        permissions = permissions_of(chosen, _REFUSALS)
        about = {"head": "entrostat", "cannot": _REFUSALS}
        self.session = Session(
            chosen, place, "entrostat.Probe", run_info.plain(config or {}), definitions, about, permissions
        )
        self._board = Board()
        self._controller = Controller(permissions, self._board, self.session.say)
        self._has_saved = False
        self.session.recorder.rewards_from_responses = True
        if texts is not None:
            self.session.read_texts(texts)
        self._rank = rank
        self._generators: dict[torch.device, torch.Generator] = {}
        self._last_step = resume_step or 0
        self._states: dict[str, State] = {}
        self.session.recorder.begin_step()
        self._switch(self._last_step + 1)

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self.session.run_id

    @property
    def desired(self) -> DesiredState:
        """The server's desired state, as of its last answer."""
        return self.session.desired

    def observe(
        self,
        *,
        labels: Tensor,
        mask: Tensor,
        hidden: Tensor | None = None,
        head: Tensor | None = None,
        bias: Tensor | None = None,
        logits: Tensor | None = None,
        advantages: Tensor | None = None,
        old_logps: Tensor | None = None,
        groups: Tensor | None = None,
        rewards: Tensor | None = None,
        truncated: Tensor | None = None,
        prompt_ids: Tensor | None = None,
        rollout_logps: Tensor | None = None,
        temperature: float = 1.0,
        softcap: float | None = None,
        logit_scale: float | None = None,
        micro_batches: int = 1,
    ) -> Seen:
        """Measure one micro-batch. Position t of each row predicts ``labels[:, t]``: shift before you call.

        Args:
            labels: [B, T] the sampled tokens.
            mask: [B, T] non-zero on response tokens.
            hidden: [B, T, d] last hidden states; with ``head`` [V, d] (and ``bias`` [V]) logits never exist in full.
            head: [V, d] the head's weight. Sharded (a DTensor of FSDP2, or ZeRO-3's), it is gathered: then this call is
                a collective, and every rank makes it equally often.
            bias: [V].
            logits: [B, T, V], in the place of ``hidden`` and ``head``.
            advantages: [B] or [B, T], before any shaping.
            old_logps: [B, T] log-probs under the policy that sampled; None: sampled by this very policy.
            groups: [B] the same number for responses to the same prompt.
            rewards: [B] total reward of each response.
            truncated: [B] bool, cut at the length limit.
            prompt_ids: [B, P] tokens of the prompts, padded with a negative number or anything that is no letter; for
                ``language_mixing_rate``, and not sent.
            rollout_logps: [B, T] log-probs that the engine which sampled reported at ``temperature``, NaN where
                unknown; held against ``old_logps``, the trainer's own of the same policy, or without them the observed.
            temperature: the sampling temperature: signals describe the policy that samples.
            softcap: of the model's head.
            logit_scale: of the model's head.
            micro_batches: how many of these make a step; the token budget is divided by it.

        Raises:
            ValueError: neither or both of hidden and logits, or shapes that do not fit.
        """
        self._check(labels, mask, hidden, head, logits, rollout_logps)
        ignored = labels.masked_fill(mask == 0, -100).reshape(-1)
        n = self.session.options.candidates
        began = time.perf_counter()
        if logits is not None:
            flat = logits.detach().reshape(-1, logits.shape[-1])
            stats = from_logits(flat, ignored, temperature=temperature, softcap=softcap, logit_scale=logit_scale, n=n)
        else:
            assert hidden is not None
            assert head is not None
            flat = hidden.detach().reshape(-1, hidden.shape[-1])
            weight = whole(head).to(flat.dtype)
            bias = None if bias is None else whole(bias)
            stats = from_hidden(
                flat, weight, ignored, bias=bias, temperature=temperature, softcap=softcap, logit_scale=logit_scale, n=n
            )
        self.session.recorder.spent(time.perf_counter() - began)
        with self.session.guarded("observing a micro-batch"):
            seen = Observed(
                logp=stats.logp.view(mask.shape),
                entropy=stats.entropy.view(mask.shape),
                mask=mask,
                token_ids=labels,
                advantages=advantages,
                log_ratio=_log_ratio(stats.logp.view(mask.shape), old_logps),
                is_top1=stats.is_top1.view(mask.shape),
                sum_p2=stats.sum_p2.view(mask.shape),
                hidden_norm=None if hidden is None else _norm(hidden),
                prompt=groups,
                reward=rewards,
                truncated=truncated,
                prompt_ids=prompt_ids if self.session.reads_texts else None,
                rollout_logp=rollout_logps,
            )
            self._record(stats, seen, micro_batches)
        return Seen(stats, mask, advantages, groups)

    def policy_loss(
        self,
        logp: Tensor,
        seen: Seen,
        *,
        old_logps: Tensor | None = None,
        aggregation: Aggregation = "token",
        normaliser: float | Tensor | None = None,
        entropy: Tensor | None = None,
        top_logps: Tensor | None = None,
        reference_kl: ReferenceKL | None = None,
        transforms: Sequence[Transform] = (),
    ) -> Tensor:
        """PPO's clipped surrogate on the observed micro-batch, with ``transforms`` and whatever is switched on.

        A method that is switched on and needs what is not given here does not act, and that is said once.

        What a method has to remember (the random choices of ``clip_cov``) is kept from call to call, by its name.

        Args:
            logp: [B, T] log-probs of the labels under the policy being trained, with gradient.
            seen: what ``observe`` returned for the micro-batch; its advantages, mask and groups are used.
            old_logps: [B, T] under the policy that sampled; None: this very policy.
            aggregation: ``token``, ``response`` or ``fixed``; see ``entrostat.interventions.policy_loss``.
            normaliser: for ``fixed``. The tokens of the whole step over all micro-batches and ranks, divided by the
                number of ranks where gradients are averaged over them, make one token count as much as another.
            entropy: [B, T] with gradient, for methods that need one.
            top_logps: [B, T, n] of the policy's most likely candidates, with gradient, for ``casp``.
            reference_kl: rows [k] of the flattened batch -> their KL to a reference [k], with gradient, for ``scope``
                and ``selective_kl``.
            transforms: interventions to apply, for example ``chain({"clip_higher": {}})``.

        Raises:
            ValueError: the micro-batch was observed without advantages, or the needs of one of ``transforms`` are not
                met, or it is switched on already.
        """
        if seen.advantages is None:
            raise ValueError("policy_loss needs advantages: give them to observe(advantages=...)")
        clip = self.session.definitions
        given = {"entropy": entropy, "top_logps": top_logps, "reference_kl": reference_kl, "groups": seen.groups}
        switched_on = self._ready({name for name, value in given.items() if value is None})
        found = policy_loss(
            logp,
            seen.advantages,
            seen.mask,
            old_logp=old_logps,
            transforms=[*transforms, *switched_on],
            states=self._states | self._board.states,
            eps_low=clip.eps_low,
            eps_high=clip.eps_high,
            aggregation=aggregation,
            normaliser=normaliser,
            entropy=entropy,
            top_logps=top_logps,
            is_top1=seen.stats.is_top1.view(seen.mask.shape),
            reference_kl=reference_kl,
            groups=seen.groups,
        )
        self._board.states |= {t.name: found.states[t.name] for t in switched_on}
        self._states |= {t.name: found.states[t.name] for t in transforms}
        self._board.count(found.counts)
        return found.loss

    @property
    def in_force(self) -> dict[str, dict[str, Any]]:
        """The interventions that are switched on, with their parameters."""
        return {name: dict(params) for name, params in self._board.active.items()}

    @property
    def learning_rate_factor(self) -> float:
        """What to multiply your learning rate with; 1 unless that is switched on."""
        params = self._board.active.get("learning_rate")
        return 1.0 if params is None else LearningRateParams(**params).factor

    @property
    def should_stop(self) -> bool:
        """Whether the loop shall end after this step."""
        return "stop" in self._board.active

    def should_save(self) -> bool:
        """Whether to save a checkpoint now; true once for each time it is switched on."""
        if "save_checkpoint" not in self._board.active:
            self._has_saved = False
            return False
        asked, self._has_saved = not self._has_saved, True
        return asked

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint of yours must keep, so that interventions go on: plain JSON values."""
        return self._controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was written."""
        self._controller.load_state_dict(state)

    def _ready(self, missing: set[str]) -> list[Transform]:
        ready = []
        for transform in self._board.transforms:
            if lacking := sorted(missing & set(transform.needs)):
                self.session.warn_once(
                    f"{transform.name} is switched on and does nothing: policy_loss was not given {', '.join(lacking)}"
                )
            else:
                ready.append(transform)
        return ready

    def _switch(self, step: int) -> None:
        """Put up what is wanted for the step that begins; waits where a pause is."""
        if self.session.permissions.mode == Mode.observe:
            return
        with self.session.guarded("switching interventions"):
            switch(self.session, self._controller, step)

    def end_step(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """An optimizer step has ended: what was observed since the last one becomes its rows.

        Args:
            step: its number.
            metrics: your own numbers, stored as ``trainer/<name>``.
        """
        with self.session.guarded("closing a step"):
            self.session.recorder.end_step(step, metrics, self._board.take_counts())
            self._last_step = step
        self._switch(step + 1)

    def close(self, timeout_s: float = 5.0) -> None:
        """Training is over: send what is left for at most ``timeout_s``; the rest waits in the spool."""
        self.session.end(self._last_step, timeout_s)

    def __enter__(self) -> "Probe":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False

    def _check(
        self,
        labels: Tensor,
        mask: Tensor,
        hidden: Tensor | None,
        head: Tensor | None,
        logits: Tensor | None,
        rollout_logps: Tensor | None,
    ) -> None:
        if (logits is None) == (hidden is None) or (hidden is None) != (head is None):
            raise ValueError("give either hidden [B, T, d] with head [V, d], or logits [B, T, V]")
        given = hidden if hidden is not None else logits
        assert given is not None
        if labels.ndim != 2 or labels.shape != mask.shape or given.shape[:2] != labels.shape:
            raise ValueError(
                f"labels {tuple(labels.shape)}, mask {tuple(mask.shape)} and hidden or logits {tuple(given.shape)} "
                "must agree in [B, T]; drop the last position of the hidden states and the first of the labels"
            )
        if rollout_logps is not None and rollout_logps.shape != labels.shape:
            raise ValueError(
                f"rollout_logps {tuple(rollout_logps.shape)} must be [B, T] like labels {tuple(labels.shape)}; NaN "
                "where the engine reported none"
            )

    def _record(self, stats: TokenStats, seen: Observed, micro_batches: int) -> None:
        budget = self.session.options.budget
        micro = capture(
            seen,
            measure=None if "candidates" in self.session.definitions.without else stats.at,
            measure_all=True,
            budget=None if budget is None else -(-budget // micro_batches),
            generator=self._random(seen.logp.device),
            keep=self.session.recorder.keep,
        )
        self.session.recorder.add(micro)

    def _random(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device=device).manual_seed(self._rank)
        return self._generators[device]


@torch.no_grad()
def _log_ratio(logp: Tensor, old_logps: Tensor | None) -> Tensor:
    return torch.zeros_like(logp) if old_logps is None else logp - old_logps


@torch.no_grad()
def _norm(hidden: Tensor) -> Tensor:
    """[B, T] of [B, T, d]; float32, or float64 for float64 input."""
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    norm: Tensor = torch.linalg.vector_norm(hidden, dim=-1, dtype=dtype)
    return norm
