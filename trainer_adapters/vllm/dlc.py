"""DLC in vLLM: rollouts drawn from softmax((f_theta - mu f_phi) / T), f_phi a memory of past rollouts.

The formula and its source are ``interventions/dlc.py``; the memory is that of the transformers form
(``sampling/memory_lm.py``), a causal language model over the policy's tokens. As there, temperature comes after
(**Decision** of ``sampling/memory_logits.py``). Here the memory reads each request's whole history anew for each token:
no keys and values are kept, so its cost grows with the square of the length. It is correct first.

In the engine's process::

    dlc = DlcRollouts(memory, mu=0.5)
    llm = LLM(model, logits_processors=[dlc.processor])
    dlc.mu = 0.2                                             # from the next token on; 0: the memory is not asked

In a server: ``--logits-processors entrostat.trainer_adapters.vllm.dlc:DlcServed`` and ENTROSTAT_DLC_MEMORY, a file that
``save_memory`` writes and the engine takes up again when it changes.

With ``logprobs_mode="processed_logprobs"`` the log-probs that vLLM returns are of what was sampled from, the memory's
share included. TRL's importance correction then compares the policy to that, which is right and no longer the paper's
Algorithm 1, and its default (whole responses cut at a ratio of 3) leaves out many of them.
"""

import logging
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from entrostat.interventions.dlc import DlcParams
from entrostat.trainer_adapters.sampling.memory_lm import MemoryLM
from entrostat.trainer_adapters.vllm.processor import Batch, Processor
from entrostat.wire.errors import AttachError

log = logging.getLogger("entrostat")

OWN_MU = "entrostat_mu"
"""``SamplingParams(extra_args={"entrostat_mu": 0})``: this request's own weight; 0 for an evaluation."""
MEMORY_FILE = "ENTROSTAT_DLC_MEMORY"
_LOOK_EVERY_S = 1.0


class Dlc(Processor):
    """Subtracts ``mu`` times the memory's logits; a subclass says which memory."""

    memory: MemoryLM | None = None
    mu: float = 0.0

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise where a request's own weight is out of bounds.

        Raises:
            ValueError: vLLM answers the request with it.
        """
        if (mu := (getattr(sampling_params, "extra_args", None) or {}).get(OWN_MU)) is not None:
            DlcParams(mu=mu)

    def process(self, logits: Tensor, batch: Batch) -> Tensor:
        """The calibrated logits; rows with mu 0 stay as they are, to the bit."""
        weights = [float(r.asked(OWN_MU, self.mu)) for r in batch.requests]
        acting = batch.only([w > 0.0 for w in weights])
        if self.memory is None or not acting.rows:
            return logits
        remembered = next_logits(self.memory, *acting.tokens(logits.device)).to(logits)
        if remembered.shape[-1] != logits.shape[-1]:
            raise ValueError(
                f"the memory gives {remembered.shape[-1]} logits and the policy {logits.shape[-1]}: "
                "they must have the same vocabulary"
            )
        weight = torch.tensor([w for w in weights if w > 0.0], device=logits.device, dtype=logits.dtype)
        # -inf (a token that a grammar forbids) stays -inf: the memory's logits are finite.
        logits[acting.rows] -= weight.unsqueeze(1) * remembered
        return logits


def next_logits(memory: MemoryLM, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """[k, V] logits of the token behind each row of ``input_ids`` [k, L], padded on the left."""
    with torch.no_grad():
        logits: Tensor = memory.forward(input_ids, attention_mask, keep=1).logits[:, -1].float()
    return logits


class DlcRollouts:
    """DLC for an engine in this process: whoever trains the memory holds it.

    Args:
        memory: f_phi; moved to the engine's device when the engine is made.
        mu: its weight, 0 to 2; may be set at any time and acts from the next token on.
    """

    def __init__(self, memory: MemoryLM, mu: float = 0.5) -> None:
        self.memory, self.mu = memory, mu
        self.processor = _processor_of(self)
        """The class to give to vLLM."""
        self.made: list[Processor] = []
        """What vLLM made of it."""

    @property
    def mu(self) -> float:
        """The memory's weight; 0 samples from the policy."""
        return self._mu

    @mu.setter
    def mu(self, value: float) -> None:
        self._mu = DlcParams(mu=value).mu

    @property
    def failure(self) -> str | None:
        """What switched it off, if something did."""
        return next((p.failure for p in self.made if p.failure), None)


def _processor_of(dlc: DlcRollouts) -> type[Dlc]:
    class DlcProcessor(Dlc):
        """DLC with the memory and the weight of the object that made this class."""

        def __init__(self, vllm_config: Any, *rest: Any) -> None:
            super().__init__(vllm_config, *rest)
            _check_vocabulary(vllm_config, dlc.memory)
            self.memory = dlc.memory
            dlc.made.append(self)

        def process(self, logits: Tensor, batch: Batch) -> Tensor:
            self.mu = dlc.mu
            _move(dlc.memory, logits.device)
            return super().process(logits, batch)

    return DlcProcessor


def _check_vocabulary(vllm_config: Any, memory: MemoryLM) -> None:
    found = vllm_config.model_config.get_vocab_size()
    if found != memory.vocab_size:
        raise AttachError(
            f"the memory has {memory.vocab_size} tokens and the policy {found}: they must be the same tokens"
        )


def _move(memory: MemoryLM, device: torch.device) -> None:
    if next(memory.model.parameters()).device != device:
        with torch.inference_mode(False):  # else its weights could not be trained any more
            memory.to(device)


# In a server -----------------------------------------------------------------------------------------------------


def save_memory(path: Path, memory: MemoryLM, mu: float) -> None:
    """Write the memory and its weight for ``DlcServed``, in one piece: a reader sees the old file or the new one.

    Raises:
        OSError: it cannot be written there.
        ValueError: mu out of bounds.
    """
    kept = {
        "mu": DlcParams(mu=mu).mu,
        "config": memory.model.config.to_dict(),  # type: ignore[operator,union-attr]
        "model": memory.model.state_dict(),
    }
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    torch.save(kept, unfinished)
    unfinished.replace(path)


def load_memory(path: Path) -> tuple[MemoryLM, float]:
    """What ``save_memory`` wrote: a memory to be asked, and mu.

    Raises:
        OSError, RuntimeError, KeyError, ValueError: there is no such file, or it is none.
    """
    kept = torch.load(path, map_location="cpu", weights_only=True)
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        config = AutoConfig.for_model(**kept["config"])
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(kept["model"])
    return MemoryLM(model), DlcParams(mu=kept["mu"]).mu


class DlcServed(Dlc):
    """DLC in a server's engine: memory and weight come from the file that ENTROSTAT_DLC_MEMORY names.

    The file is looked at once a second while tokens are drawn. Until it is there nothing is subtracted; a file that
    cannot be read leaves the memory that was there. With tensor parallelism each rank reads for itself, and for a
    moment they may differ: change the file between generations.

    Raises:
        AttachError: ENTROSTAT_DLC_MEMORY is not set.
    """

    def __init__(self, vllm_config: Any, *rest: Any) -> None:
        super().__init__(vllm_config, *rest)
        if not os.environ.get(MEMORY_FILE):
            raise AttachError(
                f"set {MEMORY_FILE} to the file that entrostat.trainer_adapters.vllm.dlc.save_memory writes"
            )
        self._path = Path(os.environ[MEMORY_FILE])
        self._config = vllm_config
        self._version: tuple[int, int] | None = None
        self._looked = float("-inf")

    def process(self, logits: Tensor, batch: Batch) -> Tensor:
        """The calibrated logits, with the newest memory."""
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._look()
            self._looked = time.monotonic()
        if self.memory is not None:
            _move(self.memory, logits.device)
        return super().process(logits, batch)

    def _look(self) -> None:
        try:
            found = self._path.stat()
        except OSError:
            return
        if (version := (found.st_mtime_ns, found.st_ino)) == self._version:
            return
        self._version = version
        try:
            memory, mu = load_memory(self._path)
            _check_vocabulary(self._config, memory)
        except Exception as error:  # noqa: BLE001  a file of anybody's: the engine goes on with what it has
            log.warning("DLC: %s is not taken up: %s: %s", self._path, type(error).__name__, error)
            return
        self.memory, self.mu = memory, mu
        log.info("DLC: the memory is taken up from %s, mu = %s", self._path, mu)
