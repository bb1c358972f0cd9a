"""The rollout probe of a server's engine: it sends its signals itself, from the process that samples.

::

    ENTROSTAT_RUN=my-run ENTROSTAT_URL=http://localhost:8321 \\
    vllm serve MODEL --logits-processors entrostat.trainer_adapters.vllm.rollout_stream:RolloutStream

The stream belongs to the trainer's run, as its producer ``rollout``: ENTROSTAT_RUN names the run, there and at
the trainer alike. Parts add up with those of other engines of the run, and of this one after a restart.

**Which step.** An engine does not know the trainer's. A request says it: ``extra_args={"entrostat_step": 12}``, over
HTTP ``"vllm_xargs": {"entrostat_step": 12}``. Requests that say none count for the last step that any request named,
and for step 0 before that.
"""

import hashlib
import importlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from torch import Tensor

from entrostat.probe.rows import event_rows, metric_rows
from entrostat.trainer_adapters import run_info
from entrostat.trainer_adapters.session import Options, from_environment, spool_root
from entrostat.trainer_adapters.vllm.measured import Kept, measure
from entrostat.trainer_adapters.vllm.processor import STEP, Batch, Processor, Request
from entrostat.trainer_adapters.vllm.rollout_probe import asked_for, check_opt_out
from entrostat.wire.declared.rollout import RANKS
from entrostat.wire.errors import AttachError
from entrostat.wire.mergeable import Part, mean_of
from entrostat.wire.messages import StreamOpen
from entrostat.wire.sender import Sender

log = logging.getLogger("entrostat")

_LARGEST_STEP = 2**31 - 1
_SEND_EVERY_S = 1.0
_FORGET_AFTER_S = 60.0


class Token(NamedTuple):
    """A measured token: its step, entropy in nats, the candidates' log-probs by rank, and when."""

    step: int
    entropy: float
    top_logps: list[float]
    measured: float


class RolloutStream(Processor):
    """Measures every request that did not opt out (``entrostat_rollout``), and sends once a second.

    Nothing on the sampling thread waits: it queues small tensors on the device; a thread of its own takes them. The
    stream is opened with the first token. With tensor parallelism the first rank sends.

    Raises:
        AttachError: ENTROSTAT_RUN is not set: the engine does not start.
    """

    def __init__(self, vllm_config: Any, *rest: Any) -> None:
        super().__init__(vllm_config, *rest)
        self._options = from_environment()
        if self._options.run is None:
            raise AttachError(
                "set ENTROSTAT_RUN to the name of the trainer's run: the engine's signals are a part of it"
            )
        self._about = _about(vllm_config)
        self._is_silent = tensor_rank() != 0
        self._kept: dict[int, Kept] = {}
        self._step = 0
        self._open: dict[tuple[Request, int], Token] = {}
        self._lock = threading.Lock()
        self._sender: Sender | None = None
        self._pid = -1

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise where a request's ``entrostat_step`` or ``entrostat_rollout`` is none.

        Raises:
            ValueError: vLLM answers the request with it.
        """
        check_opt_out(sampling_params)
        step = (getattr(sampling_params, "extra_args", None) or {}).get(STEP, 0)
        if not isinstance(step, int) or not 0 <= step <= _LARGEST_STEP:
            raise ValueError(f"{STEP}={step!r}: the trainer's step is a whole number from 0 to {_LARGEST_STEP}")

    def process(self, logits: Tensor, batch: Batch) -> Tensor:
        """The logits as they came."""
        if self._is_silent:
            return logits
        batch = asked_for(batch)
        steps = [self._step_of(request) for request in batch.requests]
        for step in dict.fromkeys(steps):
            its = batch.only([s == step for s in steps])
            with self._lock:
                kept = self._kept.setdefault(step, Kept())
            kept.add(measure(logits, its, max(RANKS)))
        if self._pid != os.getpid() and steps:
            self._begin()
        return logits

    def _step_of(self, request: Any) -> int:
        said = request.asked(STEP)
        if said is not None:
            self._step = int(said)
        return self._step

    def _begin(self) -> None:
        """Open the stream and start its thread, in the process that samples."""
        self._pid = os.getpid()
        opening = _opening(self._options, self._about)
        self._sender = Sender(opening, url=self._options.url, token=self._options.token, root=spool_root(self._options))
        self._say("rollout_started", "the rollout probe measures in the engine", **self._about)
        threading.Thread(target=self._run, name="entrostat-rollout", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_SEND_EVERY_S)
            self.send()

    def send(self) -> None:
        """Hand over the tokens that were drawn since the last time. Never raises."""
        try:
            with self._lock:
                kept, self._kept = self._kept, {}
            for step, its in kept.items():
                self._open |= _tokens(step, its)
                if its.num_dropped:
                    self._say("warning", f"{its.num_dropped} tokens found no room and were not measured", step)
            for step, tokens in self._drawn().items():
                if self._sender is not None:
                    self._sender.put(partial(_tables, step, tokens), 100 * len(tokens), "step")
        except Exception as error:  # the engine goes on
            self.failure = f"{type(error).__name__}: {error}"
            log.exception("the rollout probe switched itself off (sampling goes on)")

    def _drawn(self) -> dict[int, list[Token]]:
        """Step -> tokens that the engine has drawn by now; the others stay open, for a minute at most.

        A piece of a long prompt has a row like any other, and what it gives is thrown away: in V1 only the request's
        own list tells.
        """
        found: dict[int, list[Token]] = {}
        for (request, position), token in list(self._open.items()):
            is_drawn = request.output_ids is None or len(request.output_ids) > position
            if is_drawn:
                found.setdefault(token.step, []).append(token)
            if is_drawn or time.monotonic() - token.measured > _FORGET_AFTER_S:
                del self._open[request, position]
        return found

    def _say(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        if self._sender is not None:
            rows = event_rows(kind, message, step, detail or None)
            self._sender.put(lambda: {"event": rows}, rows.nbytes, "event")


def _tokens(step: int, kept: Kept) -> dict[tuple[Request, int], Token]:
    """By request and position; of a position that came twice the later."""
    chunk = kept.take()
    if chunk is None:
        return {}
    now = time.monotonic()
    places = zip(chunk.requests, chunk.positions, strict=True)
    values = zip(chunk.entropy.tolist(), chunk.top_logps.tolist(), strict=True)
    return {place: Token(step, *value, now) for place, value in zip(places, values, strict=True)}


def parts_of(tokens: Sequence[Token]) -> dict[str, Part]:
    """The signals of ``wire/declared/rollout.py``, from tokens of one step; what is not finite is left out."""
    entropy = np.array([t.entropy for t in tokens])
    is_sound = np.isfinite(entropy)
    logps = np.array([t.top_logps for t in tokens])[is_sound]
    found = {
        "rollout_entropy_mean": mean_of(entropy[is_sound]),
        "rollout_tokens": Part("sum", (float(is_sound.sum()),)),
    }
    for n in RANKS[: logps.shape[1]]:
        candidate = logps[:, n - 1]
        found[f"rollout_rank_logp_{n}"] = mean_of(candidate[np.isfinite(candidate)])
    return found


def _tables(step: int, tokens: Sequence[Token]) -> dict[str, pa.Table]:
    return {"step_metric": metric_rows(step, parts_of(tokens))}


def _opening(options: Options, about: dict[str, Any]) -> StreamOpen:
    name, pid = run_info.host()
    run = str(options.run)
    return StreamOpen(
        run_id=run,
        # The same for every engine of the run and after a restart, so that none is taken for another run.
        session_id=hashlib.blake2b(f"rollout:{run}".encode(), digest_size=16).hexdigest(),
        producer="rollout",
        rank=about["data_parallel_rank"],
        started=datetime.now(UTC),
        host=name,
        pid=pid,
        trainer="vllm",
        versions=run_info.versions(),
        tags=options.tags,
        config=about,
    )


def _about(vllm_config: Any) -> dict[str, Any]:
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    return {
        "model": str(getattr(model, "model", "")),
        "dtype": str(getattr(model, "dtype", "")),
        "tensor_parallel_size": int(getattr(parallel, "tensor_parallel_size", 1)),
        "data_parallel_rank": int(getattr(parallel, "data_parallel_rank", 0) or 0),
    }


def tensor_rank() -> int:
    """This process's rank among those that share the model's tensors; 0 where there is no such group."""
    try:
        return int(importlib.import_module("vllm.distributed").get_tensor_model_parallel_rank())
    except (ImportError, AttributeError, AssertionError):
        return 0
