"""Which of our taps a trainer gets, by its class and its model; and the trainers that are refused, with the reason."""

from typing import Any, Literal

from entrostat.trainer_adapters.causal_lm import base_of
from entrostat.wire.errors import AttachError

POLICY_TRAINERS = ("GRPOTrainer", "RLOOTrainer")
_KNOWN = (
    "entrostat attaches to TRL's GRPOTrainer, RLOOTrainer and SFTTrainer, and to transformers.Trainer, of a causal "
    "language model; in a loop of your own use entrostat.Probe"
)


def kind_of(trainer: object) -> Literal["policy", "supervised"]:
    """What kind of training a trainer does.

    Raises:
        AttachError: one that we do not attach to, with the reason and the way out.
    """
    lineage = type(trainer).__mro__
    if any(base.__name__ in POLICY_TRAINERS for base in lineage):
        return "policy"
    if not any(base.__name__ == "Trainer" and base.__module__.startswith("transformers.") for base in lineage):
        raise AttachError(f"{_name(trainer)} is not a trainer entrostat knows: {_KNOWN}")
    # Of TRL's own trainers, all others have a loss over pairs, over steps of a solution, or over two models.
    of_trl = next((base.__name__ for base in lineage if base.__module__.split(".")[0] == "trl"), "SFTTrainer")
    if of_trl != "SFTTrainer":
        raise AttachError(f"{_name(trainer)}: the loss of TRL's {of_trl} is not that of single texts. {_KNOWN}")
    _check_model(trainer)
    _check_parallel(trainer)
    return "supervised"


def _name(trainer: object) -> str:
    return f"{type(trainer).__module__}.{type(trainer).__name__}"


def _check_model(trainer: Any) -> None:
    model = base_of(trainer.model)
    # By name: models with code of their own are in no table of transformers. The second is GPT-2's.
    heads = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    is_causal = any(base.__name__.endswith(heads) for base in type(model).__mro__)
    config = getattr(model, "config", None)
    if not is_causal or getattr(config, "is_encoder_decoder", False) or model.get_output_embeddings() is None:
        raise AttachError(
            f"{_name(trainer)} trains a {type(model).__name__}, and what is measured is the next token's distribution "
            f"of a decoder. {_KNOWN}"
        )


def _check_parallel(trainer: Any) -> None:
    if trainer.args.n_gpu > 1:
        raise AttachError(
            f"{_name(trainer)} would split each batch over {trainer.args.n_gpu} GPUs of one process (nn.DataParallel): "
            "launch it with torchrun or accelerate, or make one GPU visible"
        )
    sizes = getattr(trainer.accelerator, "parallelism_config", None)
    spread = [f"{kind}_size" for kind in ("tp", "cp", "sp") if getattr(sizes, f"{kind}_enabled", False)]
    if spread:
        raise AttachError(
            f"{_name(trainer)} runs with {', '.join(spread)} above 1: ranks then hold pieces of a text, or the same "
            "text twice, and lengths, perplexities and counts would be of those. Use entrostat.Probe on whole texts"
        )
