"""One logits processor for both of vLLM's model runners, which ask for different interfaces.

| | runner V1 | runner V2 (default on GPUs since vLLM 0.31) |
|---|---|---|
| made by | ``(vllm_config, device, is_pin_memory)`` | ``(vllm_config, req_states)`` |
| hears of requests by | ``update_state``: rows removed, added, moved | ``add_request``: a slot, which is recycled |
| ``apply`` gets | logits; row i is the batch's request i | logits and the step's layout |
| tokens so far | the request's own lists, on the host | ``req_states``, on the device |
| stands | before penalties, before temperature | behind penalties, before temperature |

Both classes are parents here, and what a subclass sees is a ``Batch``. Neither runner tells a processor when a request
ends, or what was drawn in the end. Speculative decoding: V1 refuses custom processors, and under V2 this one does
nothing (a row would not be a request).
"""

import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("entrostat")


def _interface(module: str) -> Any:
    """vLLM's abstract class, where this vLLM has it; where it has neither, it will say so itself."""
    try:
        return importlib.import_module(module).LogitsProcessor
    except ImportError:
        return type("Absent", (), {})


_V1 = _interface("vllm.v1.sample.logits_processor")
_V2 = _interface("vllm.v1.worker.gpu.sample.logits_processor")


@dataclass(eq=False, slots=True)
class Request:
    """One request in the engine.

    Args:
        params: its ``SamplingParams``.
        prompt_ids: the prompt's tokens: a list (V1), or a tensor on the device once the first row was seen (V2).
        output_ids: the engine's own growing list of what was sampled (V1), else None.
    """

    params: Any
    prompt_ids: Sequence[int] | Tensor | None = None
    output_ids: Sequence[int] | None = None

    def asked(self, name: str, default: Any = None) -> Any:
        """What the request's ``extra_args`` say (over HTTP: ``vllm_xargs``)."""
        return (getattr(self.params, "extra_args", None) or {}).get(name, default)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt; 0 where the prompt was given as embeddings."""
        return 0 if self.prompt_ids is None else len(self.prompt_ids)

    @property
    def temperature(self) -> float:
        """Its sampling temperature; 1 for a greedy request, which draws from no distribution."""
        value = float(self.params.temperature)
        return value if value >= _GREEDY_BELOW else 1.0


STEP = "entrostat_step"
"""The key of a request's ``extra_args`` that names the trainer's step (``rollout_stream.py``)."""
_GREEDY_BELOW = 1e-5
"""vLLM's own: a temperature below is greedy."""


@dataclass(slots=True)
class Batch:
    """The rows of one sampling step that belong to known requests.

    Args:
        rows: [k] rows of the logits.
        requests: [k] theirs.
        positions: [k] place of the token that will be drawn in its response, from 0. A prompt that is prefilled in
            pieces shows position 0 again with each piece; the last one counts.
        fed: [k] the token each row was fed, on the device (V2); None where the requests' lists say it (V1).
        history: all token ids by slot, on the device (V2).
        slots: [k] the requests' slots (V2).
    """

    rows: list[int]
    requests: list[Request]
    positions: list[int]
    fed: Tensor | None = None
    history: Tensor | None = None
    slots: list[int] = field(default_factory=list)

    def only(self, chosen: Sequence[bool]) -> "Batch":
        """The rows for which ``chosen`` [k] is true."""
        kept = [i for i, is_chosen in enumerate(chosen) if is_chosen]
        if len(kept) == len(self.rows):
            return self
        return Batch(
            [self.rows[i] for i in kept],
            [self.requests[i] for i in kept],
            [self.positions[i] for i in kept],
            None if self.fed is None else self.fed[kept],
            self.history,
            [self.slots[i] for i in kept] if self.slots else [],
        )

    def tokens(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Everything each row's request has so far: ids [k, L] padded on the left, and their mask [k, L]."""
        if self.history is None:
            return self._from_lists(device)
        lengths = [r.num_prompt + t for r, t in zip(self.requests, self.positions, strict=True)]
        end = torch.tensor(lengths, device=device).unsqueeze(1)
        place = torch.arange(max(lengths), device=device) - (max(lengths) - end)
        mask = place >= 0
        slots = torch.tensor(self.slots, device=device).unsqueeze(1)
        ids = self.history[slots, place.clamp(min=0)].long()
        return ids.masked_fill(~mask, 0), mask.long()

    def _from_lists(self, device: torch.device) -> tuple[Tensor, Tensor]:
        lists = [[*(r.prompt_ids or ()), *(r.output_ids or ())] for r in self.requests]
        length = max(len(ids) for ids in lists)
        if any(token < 0 for ids in lists for token in ids):
            raise RuntimeError(
                "the engine's lists hold tokens that are not known yet (asynchronous scheduling, and the processor was "
                "not there when the engine started): give it by LLM(logits_processors=...), or async_scheduling=False"
            )
        ids = torch.tensor([[0] * (length - len(x)) + x for x in lists], device=device)
        mask = torch.tensor([[0] * (length - len(x)) + [1] * len(x) for x in lists], device=device)
        return ids, mask


class Processor(_V1, _V2):  # type: ignore[misc,valid-type]  # vLLM's, or nothing where it is not installed
    """What the runner makes, one for each engine process; a subclass says what ``process`` does.

    Whatever goes wrong inside is ours: it is logged, and from then on the logits pass as they came.
    """

    def __init__(self, vllm_config: Any, *rest: Any) -> None:
        self.failure: str | None = None
        self._requests: dict[int, Request] = {}
        self._states = rest[0] if len(rest) == 1 else None

    def process(self, logits: Tensor, batch: Batch) -> Tensor:
        """The logits [R, V] to go on with, from those of this step; ``batch`` has one row at least."""
        raise NotImplementedError

    def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
        """As vLLM calls it, on either runner."""
        if self.failure is not None:
            return logits
        try:
            batch = self._rows(logits) if ctx is None else self._rows_of(ctx, logits)
            return self.process(logits, batch) if batch.rows else logits
        except Exception as error:  # our failure is not the engine's
            self.failure = f"{type(error).__name__}: {error}"
            log.exception("%s switched itself off (sampling goes on)", type(self).__name__)
            return logits

    # Runner V1 --------------------------------------------------------------------------------------------------

    def is_argmax_invariant(self) -> bool:
        """False: V1 then calls it for greedy requests too, and before temperature."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Requests that left, came and moved since the last step, in this order."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._requests.pop(row, None)
        for row, params, prompt_ids, output_ids in batch_update.added:
            self._requests[row] = Request(params, prompt_ids, output_ids)
        for source, target, direction in batch_update.moved:
            ours, other = self._requests.pop(source, None), self._requests.pop(target, None)
            if ours is not None:
                self._requests[target] = ours
            if other is not None and direction.name == "SWAP":
                self._requests[source] = other

    def _rows(self, logits: Tensor) -> Batch:
        rows = [row for row in range(logits.shape[0]) if row in self._requests]
        requests = [self._requests[row] for row in rows]
        return Batch(rows, requests, [len(r.output_ids or ()) for r in requests])

    # Runner V2 --------------------------------------------------------------------------------------------------

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request takes a slot; whoever had it before is forgotten."""
        self._requests[req_idx] = Request(sampling_params)
        return True

    def _rows_of(self, ctx: Any, logits: Tensor) -> Batch:
        slots = [int(slot) for slot in ctx.idx_mapping_np]
        if logits.shape[0] != len(slots):
            raise RuntimeError("several rows a request (speculative decoding): entrostat's processors do nothing there")
        states = self._states
        assert states is not None
        history: Tensor = states.all_token_ids.gpu
        found = Batch([], [], [], history=history)
        for row, slot in enumerate(slots):
            request, num_visible = self._requests.get(slot), int(ctx.seq_lens_upper_bound_np[row])
            if request is None or num_visible < int(states.prefill_len.np[slot]):
                continue  # a piece of a prompt: what it gives is thrown away
            num_prompt = int(states.prompt_len.np[slot])
            if request.prompt_ids is None:
                request.prompt_ids = history[slot, :num_prompt].clone()
            found.rows.append(row)
            found.requests.append(request)
            found.positions.append(num_visible - num_prompt)
            found.slots.append(slot)
        found.fed = ctx.input_ids[found.rows]
        return found
