"""Entropy and candidates of every token that vLLM samples, measured where it is sampled. Logits pass untouched.

vLLM returns log-probs of candidates but no entropy, in no mode. In the process of the engine (TRL's colocate mode, or
an ``LLM`` of your own with VLLM_ENABLE_V1_MULTIPROCESSING=0)::

    probe = RolloutProbe(n=3)
    llm = LLM(model, logits_processors=[probe.processor])      # an engine that is there already: live.install
    outputs = llm.generate(prompts, params)
    seen = probe.join(outputs)                                 # entropy [R, T], top_logps [R, T, n] ...

A server is another process: there ``rollout_stream.RolloutStream`` sends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from entrostat.trainer_adapters.vllm.measured import DEFAULT_CAPACITY, Chunk, Kept, measure
from entrostat.trainer_adapters.vllm.outputs import RolloutRows, rollout_rows
from entrostat.trainer_adapters.vllm.processor import Batch, Processor, Request

OPT_OUT = "entrostat_rollout"
"""``SamplingParams(extra_args={"entrostat_rollout": 0})``: this request is not measured."""


def check_opt_out(params: Any) -> None:
    """Raise where a request's ``entrostat_rollout`` is neither 0 nor 1.

    Raises:
        ValueError: vLLM answers the request with it.
    """
    value = (getattr(params, "extra_args", None) or {}).get(OPT_OUT, 1)
    if value not in (0, 1):
        raise ValueError(f"{OPT_OUT}={value!r}: it is 0 or 1")


def asked_for(batch: Batch) -> Batch:
    """The rows of requests that did not opt out."""
    return batch.only([bool(r.asked(OPT_OUT, 1)) for r in batch.requests])


@dataclass(frozen=True, slots=True)
class Measured:
    """R responses of T positions, as ``rows`` has them; NaN and -1 where a token was not measured.

    Args:
        rows: what vLLM returned.
        entropy: [R, T] nats, of softmax(logits / T) before top-k and top-p.
        logsumexp: [R, T] of the tempered logits.
        top_ids: [R, T, n] the most likely candidates.
        top_logps: [R, T, n] their log-probs, nats.
        num_missing: tokens that were sampled and have no measurement: opted out, or dropped because nobody took them.
    """

    rows: RolloutRows
    entropy: Tensor
    logsumexp: Tensor
    top_ids: Tensor
    top_logps: Tensor
    num_missing: int


class RolloutProbe:
    """What one engine's processor measures, until it is joined to the engine's outputs.

    Args:
        n: candidates of each token.
        capacity: tokens kept until ``join``; more are counted in ``num_dropped``.
    """

    def __init__(self, n: int = 3, capacity: int = DEFAULT_CAPACITY) -> None:
        if n < 1:
            raise ValueError(f"n={n}: at least the most likely candidate is measured")
        self.n = n
        self._kept = Kept(capacity)
        self.processor = _processor_of(self)
        """The class to give to vLLM: it reports to this probe."""
        self.made: list[Processor] = []
        """What vLLM made of it."""

    @property
    def num_dropped(self) -> int:
        """Tokens that found no room."""
        return self._kept.num_dropped

    @property
    def failure(self) -> str | None:
        """What switched it off, if something did."""
        return next((p.failure for p in self.made if p.failure), None)

    def see(self, logits: Tensor, batch: Batch) -> None:
        """One sampling step."""
        chosen = asked_for(batch)
        if chosen.rows:
            self._kept.add(measure(logits, chosen, self.n))

    def join(self, outputs: Sequence[Any]) -> Measured:
        """What was measured since the last call, by response and position of ``outputs``; the rest is forgotten.

        A request is found by its prompt's tokens and those it drew: neither runner tells a processor its name. Requests
        that agree in all of these were drawn from the same distributions, unless their temperatures differ.
        """
        rows = rollout_rows(outputs, self.n)
        shape = tuple(rows.mask.shape)
        seen = Measured(
            rows,
            torch.full(shape, float("nan")),
            torch.full(shape, float("nan")),
            torch.full((*shape, self.n), -1, dtype=torch.int64),
            torch.full((*shape, self.n), float("nan")),
            0,
        )
        chunk = self._kept.take()
        records = {} if chunk is None else _by_prompt(chunk)
        num_found = 0
        for row, prompt in enumerate(rows.prompt.tolist()):
            tokens = rows.token_ids[row][rows.mask[row]].tolist()
            places = _find(records.get(tuple(rows.prompt_ids[prompt]), []), tokens)
            if chunk is not None and places:
                num_found += _copy(seen, row, chunk, places, len(tokens))
        missing = int(rows.mask.sum()) - num_found
        return Measured(rows, seen.entropy, seen.logsumexp, seen.top_ids, seen.top_logps, missing)


def _processor_of(probe: RolloutProbe) -> type[Processor]:
    class RolloutProbeProcessor(Processor):
        """Measures for the probe that made this class; returns the logits as they came."""

        def __init__(self, vllm_config: Any, *rest: Any) -> None:
            super().__init__(vllm_config, *rest)
            probe.made.append(self)

        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            check_opt_out(sampling_params)

        def process(self, logits: Tensor, batch: Batch) -> Tensor:
            probe.see(logits, batch)
            return logits

    return RolloutProbeProcessor


@dataclass(eq=False, slots=True)
class _Record:
    """A request: the chunk's row of each position, and what it drew before the last, as far as is known."""

    places: dict[int, int]
    drawn: list[int]


def _by_prompt(chunk: Chunk) -> dict[tuple[int, ...], list[_Record]]:
    places: dict[Request, dict[int, int]] = {}
    for row, (request, position) in enumerate(zip(chunk.requests, chunk.positions, strict=True)):
        places.setdefault(request, {})[position] = row  # a later piece of a prompt overwrites an earlier one's
    found: dict[tuple[int, ...], list[_Record]] = {}
    for request, its in places.items():
        prompt = request.prompt_ids
        ids = prompt.tolist() if isinstance(prompt, Tensor) else list(prompt or ())
        found.setdefault(tuple(ids), []).append(_Record(its, _drawn(chunk, request, its)))
    return found


def _drawn(chunk: Chunk, request: Request, places: dict[int, int]) -> list[int]:
    if chunk.fed is None:
        return list(request.output_ids or ())
    # The row of position t was fed the token drawn at t - 1.
    return [int(chunk.fed[places[t + 1]]) if t + 1 in places else -1 for t in range(max(places))]


def _find(records: list[_Record], tokens: list[int]) -> dict[int, int] | None:
    """Of the records of one prompt the one that drew ``tokens``, which is then no longer among them.

    What was drawn last is known in V1 alone; in V2 a record that agrees in all before and in its length serves.
    """
    last = len(tokens) - 1
    able = [r for r in records if last in r.places and r.drawn[:last] == tokens[:last]]
    if not able:
        return None
    best = max(able, key=lambda r: (r.drawn[last : last + 1] == tokens[last:], len(r.places) == len(tokens)))
    records.remove(best)
    return best.places


def _copy(seen: Measured, row: int, chunk: Chunk, places: dict[int, int], length: int) -> int:
    known = [t for t in range(length) if t in places]
    rows = [places[t] for t in known]
    seen.entropy[row, known] = chunk.entropy[rows].float()
    seen.logsumexp[row, known] = chunk.logsumexp[rows].float()
    seen.top_ids[row, known] = chunk.top_ids[rows]
    seen.top_logps[row, known] = chunk.top_logps[rows].float()
    return len(known)
