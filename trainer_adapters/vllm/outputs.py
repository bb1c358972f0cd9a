"""What vLLM says about the tokens it sampled, as tensors: the sampled token by its id, the candidates by their rank.

``SamplingParams(logprobs=N)`` returns, for each position, the sampled token and the N most likely ones. They come in an
order that is nobody's promise: the sampled token first in vLLM's own outputs, sorted by log-prob in TRL's and OpenAI's.
Whoever takes "the first" as the sampled one gets the argmax's log-prob instead in the second case, and a ratio that is
quietly wrong. So nothing here looks at an order.

**Which distribution** these log-probs are of is the engine's ``logprobs_mode``: ``raw_logprobs`` (vLLM's default: the
model's own, without temperature) or ``processed_logprobs`` (what TRL and verl set: behind processors, temperature,
top-k and top-p, renormalised over what is left). A trainer's old log-probs compare to the latter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RolloutRows:
    """R responses of T positions at most, padded on the right.

    Args:
        token_ids: [R, T] int64 sampled tokens; -1 on padding.
        mask: [R, T] bool, true on sampled tokens.
        logp: [R, T] float32 log-prob of the sampled token, nats; NaN where unknown and on padding.
        top_ids: [R, T, n] int64 the candidates in the order of their rank; -1 where unknown.
        top_logps: [R, T, n] float32 their log-probs, nats; NaN where unknown.
        prompt: [R] int64 index of the request in the outputs: the same number for responses to the same prompt.
        prompt_ids: of each request, the tokens of its prompt.
    """

    token_ids: Tensor
    mask: Tensor
    logp: Tensor
    top_ids: Tensor
    top_logps: Tensor
    prompt: Tensor
    prompt_ids: list[list[int]]


def rollout_rows(outputs: Sequence[Any], n: int = 0) -> RolloutRows:
    """The responses of ``LLM.generate``, log-probs included, whether ``flat_logprobs`` was asked for or not.

    Args:
        outputs: vLLM's ``RequestOutput``s, each with one or more responses.
        n: how many of the most likely candidates to keep; at most what ``SamplingParams(logprobs=...)`` asked for.

    Raises:
        ValueError: a response whose log-probs are not those of its tokens.
    """
    responses = [(i, response) for i, output in enumerate(outputs) for response in output.outputs]
    shape = (len(responses), max((len(r.token_ids) for _, r in responses), default=0))
    rows = RolloutRows(
        token_ids=torch.full(shape, -1, dtype=torch.int64),
        mask=torch.zeros(shape, dtype=torch.bool),
        logp=torch.full(shape, float("nan")),
        top_ids=torch.full((*shape, n), -1, dtype=torch.int64),
        top_logps=torch.full((*shape, n), float("nan")),
        prompt=torch.tensor([i for i, _ in responses], dtype=torch.int64),
        prompt_ids=[list(output.prompt_token_ids or ()) for output in outputs],
    )
    for row, (_, response) in enumerate(responses):
        ids = list(response.token_ids)
        rows.token_ids[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        rows.mask[row, : len(ids)] = True
        if response.logprobs is not None:
            _fill(rows, row, ids, positions(response.logprobs), n)
    return rows


def _fill(rows: RolloutRows, row: int, ids: list[int], found: list[list["Candidate"]], n: int) -> None:
    if len(found) != len(ids):
        raise ValueError(f"response {row} has {len(ids)} tokens and log-probs of {len(found)} positions")
    for t, (token, candidates) in enumerate(zip(ids, found, strict=True)):
        rows.logp[row, t] = sampled_logp(token, candidates)
        for candidate in candidates:
            if candidate.rank is not None and 1 <= candidate.rank <= n:
                rows.top_ids[row, t, candidate.rank - 1] = candidate.token_id
                rows.top_logps[row, t, candidate.rank - 1] = candidate.logp


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token of one position: its log-prob in nats; its rank, 1 = most likely, None where the engine gave none."""

    token_id: int
    logp: float
    rank: int | None


def sampled_logp(token: int, candidates: Iterable[Candidate]) -> float:
    """The log-prob of ``token`` among a position's candidates, NaN where it is not one of them."""
    return next((c.logp for c in candidates if c.token_id == token), float("nan"))


def positions(logprobs: Any) -> list[list[Candidate]]:
    """A response's ``logprobs`` position by position: vLLM's list of dictionaries, or its ``FlatLogprobs``.

    A token that stands twice in a position (``FlatLogprobs`` lists the sampled one and again among the top ones) keeps
    its last rank: the one by counting places, which has no ties.
    """
    if hasattr(logprobs, "start_indices"):
        return [list(_once(_flat(logprobs, *ends))) for ends in _ends(logprobs)]
    return [[Candidate(token, c.logprob, c.rank) for token, c in (place or {}).items()] for place in logprobs]


def _ends(flat: Any) -> Iterator[tuple[int, int]]:
    return zip(flat.start_indices, flat.end_indices, strict=True)


def _flat(flat: Any, start: int, end: int) -> Iterator[Candidate]:
    for i in range(start, end):
        yield Candidate(flat.token_ids[i], flat.logprobs[i], flat.ranks[i])


def _once(candidates: Iterable[Candidate]) -> Iterable[Candidate]:
    return {c.token_id: c for c in candidates}.values()
