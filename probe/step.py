"""A whole optimizer step on one rank, on the host, in float64: what every signal is a function of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from entrostat.probe.capture import Capture
from entrostat.probe.selection import UNIFORM

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Kinds = np.ndarray[tuple[int, ...], np.dtype[np.int8]]
"""Index into ``CATEGORIES`` of ``wire/declared/text.py``."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Statistics that need the whole distribution, of M measured tokens.

    ``token`` [M] indexes the step's valid tokens; ``top_ids``, ``top_logps`` [M, n]; the others [M]. ``micro_batch``
    [M] is the stratum, ``certain`` [M] whether the row was sure to be measured, ``prob`` [M] its inclusion probability.
    """

    token: Ints
    micro_batch: Ints
    certain: Bools
    prob: Floats
    top_ids: Ints
    top_logps: Floats
    rank: Ints
    sum_p2: Floats
    support95: Ints
    self_certainty: Floats
    logsumexp: Floats


@dataclass(frozen=True, slots=True)
class Kept:
    """The K tokens that become rows: ``token`` [K] indexes the valid tokens, ``reason`` [K] bits, ``prob`` [K]."""

    token: Ints
    reason: Ints
    prob: Floats


@dataclass(frozen=True, slots=True)
class Reading:
    """What the texts of a step's responses say; made by ``probe/text/reader.py``.

    Per response [B]: ``format_violation``, ``repetition``, ``language_mixing`` (None without the prompts' tokens),
    ``answer`` (hash of the last answer, None where there is none). Per token [N]: ``category``. Per kept token [K]:
    ``kept_text`` (None unless the run keeps texts).
    """

    format_violation: Bools
    language_mixing: Bools | None
    repetition: Bools
    answer: list[int | None]
    category: Kinds
    kept_text: list[str] | None


@dataclass(frozen=True, slots=True)
class StepData:
    """N valid tokens of B responses. Optional fields are None where the trainer does not have them.

    Per token [N]: ``seq`` (index of the response), ``pos``, ``token_id``, ``logp``, ``entropy``, ``advantage``,
    ``log_ratio``, ``is_top1``, ``sum_p2``, ``hidden_norm``, ``rollout_logp`` (NaN where unknown), ``old_logp``. Per
    response [B]: ``length`` (valid tokens), ``prompt``, ``reward``, ``response_advantage`` (before shaping: its first
    token's), ``truncated``, ``response_log_ratio`` (where the trainer's ratio is per response), ``prompt_ids`` ([B]
    object: an array of ids each, padding included). ``num_invalid``: tokens left out because a value was NaN or
    infinite. ``reading``: what the texts say, where there is a tokenizer.
    """

    seq: Ints
    pos: Ints
    token_id: Ints
    logp: Floats
    entropy: Floats
    advantage: Floats | None
    log_ratio: Floats | None
    is_top1: Bools | None
    sum_p2: Floats | None
    hidden_norm: Floats | None
    rollout_logp: Floats | None
    old_logp: Floats | None
    length: Ints
    prompt: Ints | None
    reward: Floats | None
    response_advantage: Floats | None
    truncated: Bools | None
    response_log_ratio: Floats | None
    prompt_ids: np.ndarray | None
    candidates: Candidates | None
    kept: Kept
    num_invalid: int
    reading: Reading | None = None

    @property
    def num_responses(self) -> int:
        """B."""
        return self.length.size

    def mean_by_response(self, values: Floats) -> Floats:
        """Mean of a per-token value [N] over each response's tokens: [B]; NaN for a response without tokens."""
        totals = np.bincount(self.seq, weights=values, minlength=self.num_responses)
        with np.errstate(invalid="ignore"):
            return totals / np.where(self.length > 0, self.length, np.nan)


def gather(captures: Sequence[Capture]) -> StepData:
    """The micro-batches of a step as one. Waits for their copies: call it on the background thread.

    Args:
        captures: at least one, all with the same optional fields.
    """
    parts = [_micro_batch(c, number) for number, c in enumerate(captures)]
    token_offset = np.cumsum([0] + [p["logp"].size for p in parts])
    seq_offset = np.cumsum([0] + [p["length"].size for p in parts])
    for part, tokens_before, seqs_before in zip(parts, token_offset, seq_offset, strict=False):
        part["seq"] = part["seq"] + seqs_before
        part["kept_token"] = part["kept_token"] + tokens_before
        if "cand_token" in part:
            part["cand_token"] = part["cand_token"] + tokens_before

    def column(name: str) -> np.ndarray | None:
        present = [p[name] for p in parts if name in p]
        return np.concatenate(present) if len(present) == len(parts) else None

    columns = {name: column(name) for name in _COLUMNS}
    candidates = {name: column(f"cand_{name}") for name in Candidates.__dataclass_fields__}
    return StepData(
        **columns,  # type: ignore[arg-type]  # the keys are StepData's own fields, checked by its constructor
        candidates=None if candidates["token"] is None else Candidates(**candidates),  # type: ignore[arg-type]
        kept=Kept(**{name: column(f"kept_{name}") for name in ("token", "reason", "prob")}),  # type: ignore[arg-type]
        num_invalid=sum(int(p["num_invalid"]) for p in parts),
    )


_NOT_COLUMNS = {"candidates", "kept", "num_invalid", "reading"}
_COLUMNS = tuple(name for name in StepData.__dataclass_fields__ if name not in _NOT_COLUMNS)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bool:
        return tensor.numpy()
    return (tensor.double() if tensor.is_floating_point() else tensor.long()).numpy()


def _micro_batch(micro: Capture, number: int) -> dict[str, np.ndarray]:
    raw = {name: _numpy(t) for name, t in micro.host().items()}
    mask = raw["mask"].reshape(-1) != 0
    finite = np.isfinite(raw["logp"].reshape(-1)) & np.isfinite(raw["entropy"].reshape(-1))
    valid = mask & finite
    # Flat position -> number among the valid tokens, -1 for padding.
    place = np.where(valid, np.cumsum(valid) - 1, -1)
    response, first = _responses(mask.reshape(micro.shape), raw.get("document"))
    found = np.flatnonzero(valid)
    rows = response[found]
    part = {
        "seq": rows,
        "pos": found - first[rows],
        "token_id": raw["token_ids"].reshape(-1)[valid],
        "logp": raw["logp"].reshape(-1)[valid],
        "entropy": raw["entropy"].reshape(-1)[valid],
        "length": np.bincount(rows, minlength=first.size),
        "num_invalid": int((mask & ~finite).sum()),
    }
    part |= _optional(raw, valid, rows, first)
    return part | _chosen(raw, place, int(valid.sum()), number, micro.measured_all)


def _responses(mask: Bools, document: Ints | None) -> tuple[Ints, Ints]:
    """The number of the response that each flat place belongs to, [B * T]; each one's first place with a token, [R].

    A row is a response, its first place its first token's: prompts may be padded on the left, or be part of the row.
    With documents, each of them that has a token is one.
    """
    if document is None:
        number = np.repeat(np.arange(mask.shape[0]), mask.shape[1])
        return number, np.arange(mask.shape[0]) * mask.shape[1] + mask.argmax(axis=1)
    begins = np.ones(mask.shape, bool)
    begins[:, 1:] = document[:, 1:] != document[:, :-1]
    piece = begins.reshape(-1).cumsum() - 1
    # Padding is a piece too, and a document may be all prompt.
    _, first, of_token = np.unique(piece[mask.reshape(-1)], return_index=True, return_inverse=True)
    places = np.flatnonzero(mask)
    number = np.zeros(mask.size, np.int64)
    number[places] = of_token
    return number, places[first]


def _optional(
    raw: dict[str, np.ndarray], valid: np.ndarray, rows: np.ndarray, first: np.ndarray
) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name in ("is_top1", "sum_p2", "hidden_norm", "rollout_logp", "old_logp"):
        if name in raw:
            found[name] = raw[name].reshape(-1)[valid]
    for source, token_name, response_name in (
        ("advantages", "advantage", "response_advantage"),
        ("log_ratio", "log_ratio", "response_log_ratio"),
    ):
        if source not in raw:
            continue
        if raw[source].ndim == 1:
            found[token_name], found[response_name] = raw[source][rows], raw[source]
        else:
            found[token_name] = raw[source].reshape(-1)[valid]
            if source == "advantages":
                found[response_name] = raw[source].reshape(-1)[first]
    for name in ("prompt", "reward", "truncated"):
        if name in raw:
            found[name] = raw[name]
    if "prompt_ids" in raw:
        # An object each: micro-batches are padded to different lengths.
        found["prompt_ids"] = np.empty(first.size, object)
        for row, ids in enumerate(raw["prompt_ids"]):
            found["prompt_ids"][row] = ids
    if "truncated" in found:
        found["truncated"] = found["truncated"].astype(bool)
    if "is_top1" in found:
        found["is_top1"] = found["is_top1"].astype(bool)
    return found


def _chosen(
    raw: dict[str, np.ndarray], place: np.ndarray, num_valid: int, number: int, measured_all: bool
) -> dict[str, np.ndarray]:
    if "kept" in raw:
        is_valid = place[raw["kept"]] >= 0
        kept, reason = place[raw["kept"]][is_valid], raw["reason"][is_valid]
    else:
        kept, reason = np.arange(num_valid), np.zeros(num_valid, np.int64)
    # Rows taken at random come from what the scores left over.
    at_random = reason == UNIFORM
    rest = num_valid - int((~at_random).sum())
    prob = np.where(at_random, at_random.sum() / max(rest, 1), 1.0)
    part = {"kept_token": kept, "kept_reason": reason, "kept_prob": prob}
    if "measured" not in raw:
        return part
    measured_valid = place[raw["measured"]] >= 0
    token = place[raw["measured"]][measured_valid]
    certain = np.ones(token.size, bool) if measured_all else ~at_random
    part |= {
        "cand_token": token,
        "cand_micro_batch": np.full(token.size, number),
        "cand_certain": certain,
        "cand_prob": np.ones(token.size) if measured_all else prob,
    }
    return part | {
        f"cand_{name.removeprefix('stats_')}": raw[name][measured_valid] for name in raw if name.startswith("stats_")
    }
