"""One policy in training inside one verl worker: its session, what is in force, and the update it is in.

Our step is verl's optimizer step, one mini-batch: an ``update_actor`` of verl has several. Steps are counted by the
optimizer's own state, so that a run that resumed goes on counting.
"""

import atexit
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from entrostat.interventions.levers.learning_rate import LearningRateParams
from entrostat.probe.capture import Observed, capture
from entrostat.probe.definitions import Rollout
from entrostat.probe.token_stats import TokenStats
from entrostat.trainer_adapters.board import Board
from entrostat.trainer_adapters.boundary import switch
from entrostat.trainer_adapters.controller import Controller
from entrostat.trainer_adapters.session import Session
from entrostat.trainer_adapters.verl import acting, groups
from entrostat.trainer_adapters.verl.micro_batch import Columns, Rows, columns_of, logits_of, places_of
from entrostat.wire.messages import Mode

log = logging.getLogger("entrostat")

_ENTROPY_METRIC = "actor/entropy_loss"


@dataclass(slots=True)
class _Micro:
    """The micro-batch whose loss is being computed; what is not known yet, or does not exist here, is None."""

    columns: Columns | None = None
    rows: Rows | None = None
    stats: TokenStats | None = None
    entropy: Tensor | None = None  # [B, T] of a fused kernel
    asked_entropy: bool = False


class EngineRun:
    """What the taps hand on while a policy is updated.

    Args:
        engine: verl's ``FSDPEngineWithLMHead``.
        config: verl's ``ActorConfig``.
        session: of this rank.
        step: the optimizer steps done before.
    """

    def __init__(self, engine: Any, config: Any, session: Session, step: int) -> None:
        self.engine, self.session, self.step = engine, session, step
        self.board = Board()
        self.controller = Controller(session.permissions, self.board, session.say)
        self._is_bypass = config.policy_loss.get("loss_mode", acting.VANILLA) == "bypass_mode"
        self._no_logits, self._is_split = acting.why_no_logits(engine), acting.is_split(engine)
        self._micro: _Micro | None = None
        self._num_responses = 0
        permissions = session.permissions
        self._asks_groups = permissions.mode != Mode.observe and bool({"iac", "ppl_shaping"} & set(permissions.allow))
        self._generator: torch.Generator | None = None
        self._is_closed = False
        session.recorder.rewards_from_responses = True
        session.recorder.metric_record.dialect = "verl"
        session.recorder.begin_step()
        atexit.register(self.close)

    def close(self, timeout_s: float = 5.0) -> None:
        """The process ends, or a test: send what is left for at most ``timeout_s``; the rest waits in the spool."""
        if not self._is_closed:
            self._is_closed = True
            atexit.unregister(self.close)
            self.session.end(self.step, timeout_s)

    # One rollout ------------------------------------------------------------------------------------------------

    def rollout(self, data: Any) -> None:
        """Before verl cuts a rollout into mini-batches: what whole groups say, of all ranks, which all come here.

        With ``iac`` or ``ppl_shaping`` allowed, ``data`` gets columns of ours, which verl carries along and ignores.
        """
        mine = None
        if self.engine.is_mp_src_rank_with_outputs():
            with self.session.guarded("reading a rollout"):
                mine = groups.own(columns_of(data, self._is_bypass))
        with self.session.guarded("gathering a rollout's groups"):
            whole = groups.gathered(mine)
            if whole is None:
                self.session.warn_once("verl sent no uid: groups are not known, iac and ppl_shaping do nothing")
                return
            self.session.recorder.rewards_from_responses = False
            if self.session.place.rank == 0 and whole.reward is not None:
                self.session.recorder.add_rollout(Rollout(whole.reward.numpy(), whole.prompt.numpy()))
            if self._asks_groups and mine is not None:
                groups.write(data, whole.facts())

    # One optimizer step -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def update(self, num_responses: int) -> Iterator[Callable[[Any], None]]:
        """Around verl's ``train_batch`` of ``num_responses`` responses on this rank; yields what to give its output.

        What is in force changes here, and nowhere else; on all ranks, which all come here.
        """
        self._num_responses = num_responses
        if self.session.permissions.mode != Mode.observe:
            with self.session.guarded("switching interventions"):
                switch(self.session, self.controller, self.step + 1)
        with self._learning_rate():
            yield self._done

    def _done(self, output: Any) -> None:
        self.step += 1
        with self.session.guarded("closing a step"):
            metrics = self._metrics(output) if self.session.place.rank == 0 else {}
            self.session.recorder.end_step(self.step, metrics, self._counts())

    def _metrics(self, output: Any) -> dict[str, float]:
        """A few of verl's own numbers, under verl's names; ``update``: calls of ``update_actor``, this one included."""
        scheduler = self.engine.lr_scheduler
        found = {"actor/lr": float(scheduler.get_last_lr()[0]), "update": float(scheduler.last_epoch + 1)}
        grad_norm = output.get("metrics", {}).get("grad_norm")
        return found if grad_norm is None else found | {"actor/grad_norm": float(grad_norm)}

    def _counts(self) -> dict[str, float]:
        counts = self.board.take_counts()
        if counts.get("kl_cov_tokens") and not counts.get("kl_cov_moved"):
            self.session.warn_once(
                "kl_cov did nothing in a step: every ratio was 1, and there its penalty has no gradient. The first "
                "mini-batch of a rollout is always so; make ppo_mini_batch_size smaller than train_batch_size, or "
                "ppo_epochs above 1"
            )
        return counts

    @contextlib.contextmanager
    def _learning_rate(self) -> Iterator[None]:
        """The rate of this update alone: verl's scheduler finds its own."""
        if "learning_rate" not in self.board.active:
            yield
            return
        factor = LearningRateParams(**self.board.active["learning_rate"]).factor
        groups = self.engine.optimizer.param_groups
        own = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            for group, rate in zip(groups, own, strict=True):
                group["lr"] = rate

    # One micro-batch --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def micro_batch(self) -> Iterator[None]:
        """Around verl's ``forward_step`` of an update."""
        self._micro = _Micro()
        try:
            yield
        finally:
            self._micro = None

    def on_outputs(self, output: Any, output_args: dict[str, Any], data: Any) -> Any:
        """Read the logits, before verl does: its backward may write over them. Gives the data verl shall go on with."""
        if self._micro is None:
            return data
        with self.session.guarded("reading the logits"):
            self._read(self._micro, output, output_args, data)
        if not acting.wants_entropy(self.board):
            return data
        from verl.utils import tensordict_utils as tu

        # With the entropy in the graph, verl's backward also leaves the logits alone, which CaSP needs.
        self._micro.asked_entropy = not tu.get_non_tensor_data(data=data, key="calculate_entropy", default=False)
        return tu.assign_non_tensor(data.copy(), calculate_entropy=True)

    def _read(self, micro: _Micro, output: Any, output_args: dict[str, Any], data: Any) -> None:
        micro.columns = columns = columns_of(data, self._is_bypass)
        if self._is_split:
            return
        places = places_of(data)
        rows = None if self._no_logits is not None else logits_of(output, output_args, data, places)
        if rows is not None:
            micro.rows = rows
            micro.stats = rows.stats(columns.token_ids, columns.mask, self.session.options.candidates)
        elif getattr(output, "entropy", None) is not None and "temperature_rmpad" in output_args:
            micro.entropy = output.entropy.detach().reshape(-1)[places]

    def loss(self, loss_function: Callable[..., Any], model_output: Any, data: Any, dp_group: Any = None) -> Any:
        """verl's ``ppo_loss``, observed, with what is switched on; with nothing on it is just called."""
        micro, call = self._micro, {"model_output": model_output, "data": data, "dp_group": dp_group}
        if micro is None:
            return loss_function(**call)
        if self.engine.is_mp_src_rank_with_outputs():  # else another rank has the same tokens
            with self.session.guarded("observing a micro-batch"):
                self._observe(micro, model_output, data)
        if not self.board.transforms:
            return loss_function(**call)

        def changed(original: Callable[..., Any], **arguments: Any) -> Any:
            return self._changed(lambda: _given(micro, model_output, data), original, arguments)

        loss, metrics = acting.act(loss_function, call, changed)
        if micro.asked_entropy:
            metrics.pop(_ENTROPY_METRIC, None)  # verl did not want to have it
        return loss, metrics

    def _changed(self, given: Callable[[], acting.Given], original: Callable[..., Any], call: dict[str, Any]) -> Any:
        """What fails is taken down and said, and the step is as without it."""
        try:
            return acting.changed_loss(self.board, given(), original, call)
        except Exception as error:  # noqa: BLE001  a method of ours never makes training fail
            self.board.fail(f"{type(error).__name__}: {error}")
            self.session.warn_once(f"interventions on the loss were taken down: {type(error).__name__}: {error}")
            return original(**call)

    def _observe(self, micro: _Micro, model_output: Any, data: Any) -> None:
        columns = micro.columns or columns_of(data, self._is_bypass)
        logp = _response(model_output["log_probs"], data).detach()
        entropy = self._entropy(micro, columns, model_output, data)
        if entropy is None:
            self.session.warn_once(
                f"no tokens are recorded: {self._no_logits or 'there are no logits'}, and no entropies either; "
                "set actor_rollout_ref.actor.calculate_entropy=True"
            )
            return
        stats = micro.stats
        seen = Observed(
            logp=logp,
            entropy=entropy,
            mask=columns.mask,
            token_ids=columns.token_ids,
            advantages=columns.advantages,
            log_ratio=logp - columns.old_logp,
            is_top1=None if stats is None else _like(stats.is_top1, columns),
            sum_p2=None if stats is None else _like(stats.sum_p2, columns),
            prompt=columns.prompt,
            reward=columns.reward,
            prompt_ids=columns.prompt_ids if self.session.reads_texts else None,
            rollout_logp=columns.rollout_logp,
        )
        budget = self.session.options.budget
        self.session.recorder.add(
            capture(
                seen,
                measure=self._measure(stats),
                measure_all=True,
                budget=None if budget is None else -(-budget * len(logp) // max(self._num_responses, len(logp))),
                generator=self._random(logp.device),
                keep=self.session.recorder.keep,
            )
        )

    def _entropy(self, micro: _Micro, columns: Columns, model_output: Any, data: Any) -> Tensor | None:
        if micro.stats is not None:
            return _like(micro.stats.entropy, columns)
        if micro.entropy is not None:
            return micro.entropy
        return _response(model_output["entropy"], data).detach() if "entropy" in model_output else None

    def _measure(self, stats: TokenStats | None) -> Callable[[Tensor], TokenStats] | None:
        if stats is None or "candidates" in self.session.definitions.without:
            return None
        return stats.at

    def _random(self, device: torch.device) -> torch.Generator:
        # Our own: the trainer's random numbers must come out as they would without us.
        if self._generator is None:
            self._generator = torch.Generator(device=device).manual_seed(self.session.place.rank)
        return self._generator


def _given(micro: _Micro, model_output: Any, data: Any) -> acting.Given:
    """What the forward left for the methods."""
    return acting.Given(
        entropy=_response(model_output["entropy"], data) if "entropy" in model_output else None,
        is_top1=None if micro.stats is None or micro.columns is None else _like(micro.stats.is_top1, micro.columns),
        rows=micro.rows,
        groups=None if micro.columns is None else micro.columns.prompt,
        facts=groups.read(data),
    )


def _response(packed: Tensor, data: Any) -> Tensor:
    """[B, T] of what verl computed at every packed position."""
    from verl.workers.utils.padding import no_padding_2_padding

    found: Tensor = no_padding_2_padding(packed, data)
    return found


def _like(flat: Tensor, columns: Columns) -> Tensor:
    return flat.view(columns.mask.shape)
