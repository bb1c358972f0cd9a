"""A step as the training thread left it on disk (``wire/handover.py``), and its rows, made by another process."""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import islice

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from entrostat.probe.capture import Capture, Keep
from entrostat.probe.columns import Columns, Pattern, num_sizes, packed, tensors_of
from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.reduce import Reducer, Tables
from entrostat.probe.rows import event_rows
from entrostat.probe.signals import Parts
from entrostat.wire.handover import DATA_AT
from entrostat.wire.mergeable import STATE_LENGTH, Part
from entrostat.wire.signals import USER_PREFIX

_VERSION = 2


def document(
    step: int,
    captures: Sequence[Capture],
    rollouts: Sequence[Rollout] | None,
    more: Parts,
    users: Mapping[str, float],
    reducer: Reducer,
    keep: Keep,
) -> bytes | None:
    """What ``restore`` needs beside the data; None where something of the step is not stored.

    A line of JSON, of what is the same at most steps and is not made again (names, dtypes, settings), then integers
    (the step, shapes, where the tensors begin), then floats: the training thread writes no text.

    Args:
        step: the optimizer step.
        captures: its micro-batches.
        rollouts: as the reducer's.
        more: as the reducer's, without the user's own numbers.
        users: these.
        reducer: whose settings are kept.
        keep: stores the rollouts.
    """
    stored = [c.stored for c in captures if c.stored is not None]
    if len(stored) < len(captures):
        return None
    kept = None
    if rollouts is not None:
        kept = [columns for rollout in rollouts if (columns := _rollout(rollout, keep)) is not None]
        if len(kept) < len(rollouts):
            return None
    same = _same_every_step(
        reducer.settings,
        reducer.num_candidates,
        reducer.reader is not None,
        tuple([c.pattern for c in stored]),
        None if kept is None else tuple([c.pattern for c in kept]),
        tuple([(name, part.merge) for name, part in more.items()]),
        tuple(users),
    )
    integers = array("q", (step,))
    for capture in captures:
        integers.extend((*capture.shape, capture.measured_all))
    for columns in (*stored, *(kept or ())):
        integers.append(columns.span.start - DATA_AT)
        integers.extend(columns.sizes)
    floats = array("d", [number for part in more.values() for number in part.state])
    floats.extend(users.values())
    return b"".join((same, integers.tobytes(), floats.tobytes()))


def restore(said: bytes, data: memoryview) -> Tables:
    """The tables of a step whose process was killed before it made them, with an event that says so.

    Texts are not read: the tokenizer ended with its process.

    Raises:
        ValueError: the document is of another version of entrostat, or does not fit the data.
    """
    line, numbers = said.split(b"\n", maxsplit=1)
    found = json.loads(line)
    if found.get("version") != _VERSION:
        raise ValueError(f"written by another version of entrostat (form {found.get('version')}, this has {_VERSION})")
    settings = Settings(**found["settings"] | {"without": frozenset(found["settings"]["without"])})
    reducer = Reducer(settings, found["num_candidates"], says_absences=False)
    left = _Numbers(numbers)
    [step] = left.integers(1)
    described = [left.integers(3) for _ in found["captures"]]
    captures = [
        Capture(left.tensors(pattern, data), (rows, length), bool(measured_all))
        for pattern, (rows, length, measured_all) in zip(found["captures"], described, strict=True)
    ]
    rollouts = None if found["rollouts"] is None else [_restored(left.tensors(p, data)) for p in found["rollouts"]]
    more = _parts([*found["parts"], *((f"{USER_PREFIX}{name}", "last") for name in found["users"])], left.rest)
    tables = reducer(step, captures, rollouts, more)
    return tables | {"event": pa.concat_tables([*_events(tables), _note(step, found["reads_texts"])])}


@lru_cache(maxsize=16)
def _same_every_step(
    settings: Settings,
    num_candidates: int,
    reads_texts: bool,
    captures: tuple[Pattern, ...],
    rollouts: tuple[Pattern, ...] | None,
    parts: tuple[tuple[str, str], ...],
    users: tuple[str, ...],
) -> bytes:
    described = {
        "version": _VERSION,
        "settings": asdict(settings) | {"without": sorted(settings.without)},
        "num_candidates": num_candidates,
        "reads_texts": reads_texts,
        "captures": captures,
        "rollouts": rollouts,
        "parts": parts,
        "users": users,
    }
    return json.dumps(described).encode() + b"\n"


class _Numbers:
    """Reads the numbers behind the line."""

    def __init__(self, numbers: bytes) -> None:
        self._left = memoryview(numbers)

    def integers(self, count: int) -> Sequence[int]:
        """The next ones. Raises ValueError where fewer are left."""
        size = 8 * count
        piece, self._left = self._left[:size], self._left[size:]
        if len(piece) < size:
            raise ValueError("the document ends before its numbers do")
        return piece.cast("q")

    def tensors(self, pattern: Pattern, data: memoryview) -> dict[str, Tensor]:
        """Those of one span."""
        start, *sizes = self.integers(1 + num_sizes(pattern))
        return tensors_of(pattern, sizes, data[start:])

    @property
    def rest(self) -> bytes:
        """What is left: the floats."""
        return bytes(self._left)


def _parts(named: Sequence[tuple[str, str]], numbers: bytes) -> Parts:
    left = iter(array("d", numbers))
    return {name: Part(merge, tuple(islice(left, STATE_LENGTH[merge]))) for name, merge in named}


def _events(tables: Tables) -> list[pa.Table]:
    return [tables["event"]] if "event" in tables else []


def _note(step: int, reads_texts: bool) -> pa.Table:
    texts = " What is read from texts is absent from it." if reads_texts else ""
    message = f"The process was killed before it had made the rows of this step; push made them.{texts}"
    return event_rows("warning", message, step)


def _rollout(rollout: Rollout, keep: Keep) -> Columns | None:
    arrays = {"reward": rollout.reward, "prompt": rollout.prompt}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
    pieces, pattern, sizes = packed(tensors)
    span = keep(pieces)
    return None if span is None else Columns(pattern, sizes, span)


def _restored(tensors: Mapping[str, Tensor]) -> Rollout:
    return Rollout(**{name: tensor.numpy() for name, tensor in tensors.items()})
