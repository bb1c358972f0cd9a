"""The methods of verl's FSDP engine and worker that are wrapped, and the run that begins at the first update.

- ``train_batch``: one optimizer step; the only place where what is in force changes;
- ``forward_step``: one micro-batch; an update's loss function is handed on wrapped;
- ``prepare_model_outputs``: where the logits are, until verl's backward;
- ``train_mini_batch`` of the worker: a whole rollout, before it is cut into mini-batches; what its groups say.

They are wrapped on the class, so engines that build on it are covered, and only an update of a policy (``ppo_loss``) is
looked at: critics, references, old log-probs and evaluation pass through.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed

from entrostat.probe.definitions import Settings
from entrostat.probe.text.decode import texts_of
from entrostat.trainer_adapters import run_info
from entrostat.trainer_adapters.hooks import VERL, check
from entrostat.trainer_adapters.permissions import permissions_of
from entrostat.trainer_adapters.session import Options, Place, Session, from_environment
from entrostat.trainer_adapters.verl import acting
from entrostat.trainer_adapters.verl.engine_run import EngineRun
from entrostat.wire.errors import AttachError, EntrostatError
from entrostat.wire.messages import Permissions

log = logging.getLogger("entrostat")

RUN = "_entrostat_run"
"""The engine's attribute that holds its run; None where it could not be begun."""
_USES = ("probe", "step boundaries", "interventions")
_INSTALLED = "_entrostat_original"


def install() -> None:
    """Wrap the engine's methods; a second time does nothing.

    Raises:
        AttachError: a hook has moved; with the version found, those known and the way out.
    """
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    if hasattr(FSDPEngineWithLMHead.train_batch, _INSTALLED):
        return
    check(VERL, _USES)
    for name, tap in (
        ("train_batch", _train_batch),
        ("forward_step", _forward_step),
        ("prepare_model_outputs", _prepare_model_outputs),
    ):
        setattr(FSDPEngineWithLMHead, name, _wrapped(getattr(FSDPEngineWithLMHead, name), tap))


def install_worker() -> None:
    """Wrap the worker's method; a second time does nothing.

    Raises:
        AttachError: it has moved; with the version found, those known and the way out.
    """
    from verl.workers.engine_workers import TrainingWorker

    if not hasattr(TrainingWorker.train_mini_batch, _INSTALLED):
        check(VERL, ["whole groups"])
        # functools.wraps copies what verl's decorator has written on the function: how it is dispatched.
        TrainingWorker.train_mini_batch = _wrapped(TrainingWorker.train_mini_batch, _train_mini_batch)


def uninstall() -> None:
    """Leave verl's engine as it was found."""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    for name in ("train_batch", "forward_step", "prepare_model_outputs"):
        original = getattr(getattr(FSDPEngineWithLMHead, name), _INSTALLED, None)
        if original is not None:
            setattr(FSDPEngineWithLMHead, name, original)


def _wrapped(original: Callable[..., Any], tap: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(engine: Any, *args: Any, **kwargs: Any) -> Any:
        return tap(functools.partial(original, engine), engine, *args, **kwargs)

    setattr(method, _INSTALLED, original)
    return method


def _train_mini_batch(original: Callable[..., Any], worker: Any, data: Any) -> Any:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    config = _actor_config(worker.loss_fn)
    if config is not None and not isinstance(worker.engine, FSDPEngineWithLMHead):
        _once(f"a run with the engine {type(worker.engine).__name__} is not recorded: entrostat reads fsdp and fsdp2")
    elif config is not None and (run := _run_of(worker.engine, config)) is not None:
        run.rollout(data)
    return original(data)


def _train_batch(original: Callable[..., Any], engine: Any, data: Any, loss_function: Any) -> Any:
    config = _actor_config(loss_function)
    if config is None:
        return original(data, loss_function)
    run = _run_of(engine, config)
    if run is None:
        return original(data, loss_function)
    with run.update(len(data)) as done:
        output = original(data, loss_function)
        done(output)
    return output


def _run_of(engine: Any, config: Any) -> EngineRun | None:
    if RUN not in engine.__dict__:
        setattr(engine, RUN, begin(engine, config))
    run: EngineRun | None = getattr(engine, RUN)
    return run


def _forward_step(
    original: Callable[..., Any], engine: Any, micro_batch: Any, loss_function: Any, forward_only: bool
) -> Any:
    run: EngineRun | None = engine.__dict__.get(RUN)
    if run is None or forward_only or _actor_config(loss_function) is None:
        return original(micro_batch, loss_function, forward_only)
    with run.micro_batch():
        return original(micro_batch, functools.partial(run.loss, loss_function), forward_only)


def _prepare_model_outputs(
    original: Callable[..., Any],
    engine: Any,
    output: Any,
    output_args: Any,
    micro_batch: Any,
    logits_processor_func: Any,
) -> Any:
    run: EngineRun | None = engine.__dict__.get(RUN)
    if run is not None:
        micro_batch = run.on_outputs(output, output_args, micro_batch)
    return original(output, output_args, micro_batch, logits_processor_func)


def _actor_config(loss_function: Any) -> Any:
    """verl's ``ActorConfig`` where this is the loss of its actor, ``partial(ppo_loss, config=...)``; else None."""
    function = getattr(loss_function, "func", None)
    if getattr(function, "__name__", "") == "ppo_loss" and getattr(function, "__module__", "").startswith("verl."):
        return loss_function.keywords.get("config")
    if getattr(function, "__name__", "") == "distillation_ppo_loss":
        _once("distillation_ppo_loss is not recorded: entrostat reads verl's ppo_loss alone")
    return None


@functools.cache
def _once(message: str) -> None:
    log.error("verl: %s", message)


# The run begins -------------------------------------------------------------------------------------------------------


def begin(engine: Any, config: Any) -> EngineRun | None:
    """Open this rank's session, before the first update; every rank of the engine must come here.

    None where a rank could not open its own: then none records, so that no rank waits for another later.

    Args:
        engine: verl's ``FSDPEngineWithLMHead``.
        config: verl's ``ActorConfig``.

    Raises:
        AttachError: ``ENTROSTAT_*`` allow something that this actor cannot have, or cannot be read; on all ranks.
    """
    options, run_id, session_id = _agreed()
    refusals = acting.refusals(config, engine)
    permissions = permissions_of(options, refusals)
    failure, run = "", None
    try:
        run = _begun(engine, config, options, permissions, refusals, (run_id, session_id))
    except Exception as error:  # noqa: BLE001  a probe never makes training fail
        failure = f"rank {torch.distributed.get_rank()}: {type(error).__name__}: {error}"
    failures: list[str] = [""] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(failures, failure)
    if not any(failures):
        return run
    log.error("this verl run is not recorded: %s (training goes on)", "; ".join(filter(None, failures)))
    if run is not None:
        run.close()
    return None


def _agreed() -> tuple[Options, str, str]:
    """The settings of rank 0, whose environment counts, and the names of run and session; the same on all ranks."""
    shared: list[Any] = [None]
    if torch.distributed.get_rank() == 0:
        try:
            options = from_environment()
            shared = [(options, options.run or run_info.new_run_id("verl"), run_info.new_id())]
        except (ValueError, EntrostatError) as error:
            shared = [str(error)]
    torch.distributed.broadcast_object_list(shared, src=0)
    if isinstance(shared[0], str):
        raise AttachError(f"ENTROSTAT_* of rank 0: {shared[0]}")
    agreed: tuple[Options, str, str] = shared[0]
    return agreed


def _begun(
    engine: Any,
    config: Any,
    options: Options,
    permissions: Permissions,
    refusals: Mapping[str, str],
    names: tuple[str, str],
) -> EngineRun:
    step = _steps_done(engine.optimizer)
    eps_low, eps_high = acting.clip_range(config)
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    session = Session(
        options,
        Place(*names, rank=rank, world_size=world_size, resume_step=step or None),
        "verl",
        {"actor": run_info.plain(dict(config)), "model": run_info.plain(engine.model_config.hf_config.to_dict())},
        Settings(options.correct_at, config.rollout_n if config.rollout_n > 1 else None, eps_low, eps_high),
        {"head": "trainer", "cannot": dict(refusals), "absent": acting.why_no_logits(engine)},
        permissions,
    )
    if (tokenizer := engine.model_config.tokenizer) is not None and "text" not in options.without:
        with session.guarded("copying the tokenizer"):
            session.read_texts(texts_of(tokenizer))
    log.info("entrostat records this verl run as %s", session.run_id)
    return EngineRun(engine, config, session, step)


def _steps_done(optimizer: Any) -> int:
    """The steps in the optimizer's own state: above 0 after a checkpoint was loaded."""
    for state in optimizer.state.values():
        if "step" in state:
            return int(state["step"])
    return 0
