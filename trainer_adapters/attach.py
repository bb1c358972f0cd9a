"""The one line: ``entrostat.attach(trainer)``."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from entrostat.trainer_adapters.permissions import permissions_of
from entrostat.trainer_adapters.session import Options, from_environment
from entrostat.trainer_adapters.tap import Tap
from entrostat.trainer_adapters.trainer_kinds import kind_of
from entrostat.wire.client import without_credentials
from entrostat.wire.counters import Counters
from entrostat.wire.errors import AttachError
from entrostat.wire.messages import DesiredState, Permissions

log = logging.getLogger("entrostat")

_ATTRIBUTE = "_entrostat_handle"


class Handle:
    """What ``attach`` returns."""

    def __init__(self, boundary: Any) -> None:
        self.boundary = boundary

    @property
    def run_id(self) -> str:
        """The run's name; final once training has begun."""
        session = self.boundary.session
        return str(session.run_id if session is not None else self.boundary.run_id)

    @property
    def url(self) -> str:
        """Where the server shows the run."""
        return f"{without_credentials(str(self.boundary.options.url))}/v1/runs/{self.run_id}"

    @property
    def desired(self) -> DesiredState:
        """The server's desired state as of its last answer; the empty document before there was one."""
        session = self.boundary.session
        return session.desired if session is not None else DesiredState()

    @property
    def counters(self) -> Counters:
        """What the sender has written, sent and dropped so far."""
        session = self.boundary.session or self.boundary.last_session
        return Counters() if session is None else session.sender.counters

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Numbers of your own at a step, stored as ``trainer/<name>``; lost where no session is open.

        Args:
            step: of the trainer's count.
            metrics: name -> number; dictionaries inside become ``name/name``.
        """
        session = self.boundary.session
        if session is not None:
            with session.guarded("reading the user's metrics"):
                session.recorder.log(step, metrics)

    def detach(self) -> None:
        """Leave the trainer as it was found, from any point between two steps; what was recorded is sent."""
        trainer = self.boundary.tap.trainer
        self.boundary.end(trainer.state)
        self.boundary.levers.remove()
        self.boundary.tap.board.put({})
        self.boundary.tap.remove()
        trainer.remove_callback(self.boundary)
        delattr(trainer, _ATTRIBUTE)


def attached(trainer: Any) -> Handle | None:
    """The handle of a trainer that is attached, or None."""
    handle: Handle | None = getattr(trainer, _ATTRIBUTE, None)
    return handle


def attach(
    trainer: Any,
    *,
    run: str | None = None,
    url: str | None = None,
    token: str | None = None,
    directory: str | Path | None = None,
    tags: dict[str, str] | None = None,
    tokens: int | Literal["all"] | None = None,
    candidates: int | None = None,
    keep_candidates: int | None = None,
    baseline_steps: int | None = None,
    correct_at: float | None = None,
    without: Collection[str] | None = None,
    answer_pattern: str | None = None,
    keep_text: bool | None = None,
    head: Literal["trainer", "entrostat"] | None = None,
    mode: Literal["observe", "advise", "act"] | None = None,
    allow: Collection[str] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    reference: Any = None,
    grace_s: float | None = None,
    on_lost: Literal["hold", "revert"] | None = None,
) -> Handle:
    r"""Watch ``trainer`` from now on, and let be done to it what ``mode`` and ``allow`` say.

    While nothing is switched on, its loss and gradients stay the same to the bit (``head="entrostat"``: to float
    precision).

    Args:
        trainer: TRL's ``GRPOTrainer``, ``RLOOTrainer`` or ``SFTTrainer``, or ``transformers.Trainer`` of a causal
            language model.
        run: name of the run, ``[A-Za-z0-9._-]``; else ENTROSTAT_RUN, else made up. A checkpoint remembers it.
        url: the server; else ENTROSTAT_URL, else http://localhost:8321. While none answers, batches wait on disk.
        token: for a server that asks for one; else ENTROSTAT_TOKEN.
        directory: where batches wait; else ENTROSTAT_DIR, else the user's data folder.
        tags: free words to find the run by.
        tokens: token rows kept per step and rank, 4,096 by default; ``"all"`` keeps every token.
        candidates: candidates measured per token, 8 by default.
        keep_candidates: candidates kept in token rows, 3 by default.
        baseline_steps: the first steps, which d_collapse is measured against, 5 by default.
        correct_at: a response is right when its total reward is at least this, 1.0 by default.
        without: families of signals to switch off, of ``entrostat signals``: without ``candidates`` none are measured,
            without ``text`` responses are not read. What views make from the rows that are left stays.
        answer_pattern: a regular expression whose matches in a response are its answers: their group ``answer``, else
            their first group, else all of them. ``\boxed{...}`` by default. Of an answer only a hash is sent.
        keep_text: send each token row's text too; off by default. Prompts are never sent; the token ids of responses
            always are, and whoever has the tokenizer can read them: with ``tokens="all"`` whole responses, else the
            rows kept. This makes them readable to everyone who may query the server. ``probe/README.md`` lists what
            leaves the machine.
        head: GRPO and RLOO: whose fused head the loss's forward goes through; else ENTROSTAT_HEAD, else ``trainer``.
            ``trainer``: TRL's own; losses and gradients to the bit; candidates are measured on the sample of tokens
            that ``tokens`` keeps, so signals over candidates have a standard error. ``entrostat``: ours in its place;
            candidates, rank and support of every token come out of the loss's own product with the head, without a
            second one and without sampling error; log-probs, entropy and gradients equal TRL's to float precision.
            Old and reference log-probs stay TRL's. The run's record says which it was.
        mode: ``observe``: nothing is ever applied; ``advise``: what a person switched on or approved; ``act``: what
            rules want too. Else ENTROSTAT_MODE, else observe.
        allow: the interventions of ``entrostat interventions`` that may be; by default all that this trainer can have.
        bounds: tighter bounds of yours, for example ``{"kl_cov.beta": (0.0, 2.0)}``.
        reference: for ``scope`` and ``selective_kl``: a causal language model of transformers, or
            ``entrostat.FrozenCopy()`` of the policy as it is now; by default the trainer's own reference or the base
            model under a PEFT adapter, where there is one.
        grace_s: silence of the server, in seconds, after which ``on_lost`` happens; 600 by default.
        on_lost: ``hold`` what is on, or ``revert`` to nothing; hold by default.

    Returns:
        A handle with ``run_id``, ``url``, ``desired`` and ``detach()``.

    Raises:
        AttachError: not a trainer we know, already attached, a version whose private names have moved, something in
            ``allow`` that this trainer cannot have, or ``head="entrostat"`` where it cannot stand in (a head that is
            spread over ranks, quantised or under an adapter; nn.DataParallel; supervised training), with the reason.
        BadParameter: ``allow`` or ``bounds`` name something that does not exist.
        ValueError: an option out of range, with its name.
        TypeError: ``reference`` is not one.
    """
    if attached(trainer) is not None:
        raise AttachError(f"this {type(trainer).__name__} is attached already: call handle.detach() first")
    options = from_environment(
        run=run,
        url=url,
        token=token,
        directory=directory,
        tags=tags,
        tokens=tokens,
        candidates=candidates,
        keep_candidates=keep_candidates,
        baseline_steps=baseline_steps,
        correct_at=correct_at,
        without=without,
        answer_pattern=answer_pattern,
        keep_text=keep_text,
        head=head,
        mode=mode,
        allow=allow,
        bounds=None if bounds is None else dict(bounds),
        grace_s=grace_s,
        on_lost=on_lost,
    )
    make = {"policy": _policy_tap, "supervised": _supervised_tap}[kind_of(trainer)]
    tap, permissions = make(trainer, options, reference)
    from entrostat.trainer_adapters.hf_callback import StepBoundary

    tap.install()
    boundary = StepBoundary(tap, options, permissions)
    trainer.add_callback(boundary)
    handle = Handle(boundary)
    setattr(trainer, _ATTRIBUTE, handle)
    return handle


def _policy_tap(trainer: Any, options: Options, reference: Any) -> tuple[Tap, Permissions]:
    from entrostat.trainer_adapters.reference import reference_of
    from entrostat.trainer_adapters.reward_functions import bind_rewards
    from entrostat.trainer_adapters.trl_policy import PolicyTap

    # Before the taps are in: a frozen copy must not carry them.
    n = None
    if options.head == "entrostat":
        n = 1 if "candidates" in options.without else options.candidates
    tap = PolicyTap(trainer, reference=reference_of(trainer, reference), own_head=n)
    permissions = permissions_of(options, tap.refusals())
    bind_rewards(trainer)
    if getattr(trainer, "use_vllm", False):
        warn_of_logprobs(trainer)
    return tap, permissions


def warn_of_logprobs(trainer: Any) -> None:
    """Say where TRL would read the wrong log-prob out of vLLM's; see ``check_logprobs``."""
    from entrostat.trainer_adapters.vllm.trl_rollouts import check_logprobs

    try:
        check_logprobs(trainer)
    except AttachError as error:
        # The user's own setting, and a wrong ratio with or without us: said, not refused.
        log.warning("%s", error)


def _supervised_tap(trainer: Any, options: Options, reference: Any) -> tuple[Tap, Permissions]:
    from entrostat.trainer_adapters.supervised import SupervisedTap

    tap = SupervisedTap(trainer)
    if options.head != "trainer":
        raise AttachError(
            'head="entrostat" is for GRPO and RLOO: a supervised trainer\'s loss is its own, from its own head. Leave '
            "head= and ENTROSTAT_HEAD out"
        )
    if reference is not None:
        raise AttachError(f"reference= is for scope and selective_kl: {tap.refusals()['scope']}")
    return tap, permissions_of(options, tap.refusals())
