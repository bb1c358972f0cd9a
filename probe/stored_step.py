"""A step as the training thread left it on disk (``wire/handover.py``), and its rows, made by another process."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from entrostat.probe.capture import Capture, Keep
from entrostat.probe.columns import Columns, bytes_of, tensors_of
from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.reduce import Reducer, Tables
from entrostat.probe.rows import event_rows
from entrostat.probe.signals import Parts
from entrostat.wire.handover import DATA_AT
from entrostat.wire.mergeable import Part

_VERSION = 1


def document(
    step: int,
    captures: Sequence[Capture],
    rollouts: Sequence[Rollout] | None,
    more: Parts,
    reducer: Reducer,
    keep: Keep,
) -> bytes | None:
    """What ``restore`` needs beside the data; None where something of the step is not stored.

    Args:
        step: the optimizer step.
        captures: its micro-batches.
        rollouts: as the reducer's.
        more: as the reducer's.
        reducer: whose settings are kept.
        keep: stores the rollouts.
    """
    if any(c.stored is None for c in captures):
        return None
    kept = None
    if rollouts is not None:
        kept = [_rollout(rollout, keep) for rollout in rollouts]
        if None in kept:
            return None
    settings = asdict(reducer.settings) | {"without": sorted(reducer.settings.without)}
    said = {
        "version": _VERSION,
        "step": step,
        "captures": [
            {"shape": c.shape, "measured_all": c.measured_all, "tensors": c.stored.described(DATA_AT)}
            for c in captures
            if c.stored is not None
        ],
        "rollouts": kept,
        "more": {name: [part.merge, part.state] for name, part in more.items()},
        "settings": settings,
        "num_candidates": reducer.num_candidates,
        "reads_texts": reducer.reader is not None,
    }
    return json.dumps(said, default=float).encode()


def restore(said: bytes, data: memoryview) -> Tables:
    """The tables of a step whose process was killed before it made them, with an event that says so.

    Texts are not read: the tokenizer ended with its process.

    Raises:
        ValueError: the document is of another version of entrostat, or does not fit the data.
    """
    found = json.loads(said)
    if found.get("version") != _VERSION:
        raise ValueError(f"written by another version of entrostat (form {found.get('version')}, this has {_VERSION})")
    settings = Settings(**found["settings"] | {"without": frozenset(found["settings"]["without"])})
    reducer = Reducer(settings, found["num_candidates"], says_absences=False)
    captures = [
        Capture(tensors_of(c["tensors"], data), (c["shape"][0], c["shape"][1]), c["measured_all"])
        for c in found["captures"]
    ]
    rollouts = None if found["rollouts"] is None else [_restored(r, data) for r in found["rollouts"]]
    more = {name: Part(merge, tuple(state)) for name, (merge, state) in found["more"].items()}
    tables = reducer(found["step"], captures, rollouts, more)
    return tables | {"event": pa.concat_tables([*_events(tables), _note(found)])}


def _events(tables: Tables) -> list[pa.Table]:
    return [tables["event"]] if "event" in tables else []


def _note(found: Mapping[str, Any]) -> pa.Table:
    texts = " What is read from texts is absent from it." if found["captures"] and found["reads_texts"] else ""
    message = f"The process was killed before it had made the rows of this step; push made them.{texts}"
    return event_rows("warning", message, found["step"])


def _rollout(rollout: Rollout, keep: Keep) -> dict[str, Any] | None:
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(value))
        for name, value in (("reward", rollout.reward), ("prompt", rollout.prompt))
    }
    span = keep([bytes_of(tensor) for tensor in tensors.values()])
    return None if span is None else Columns.of(tensors, span).described(DATA_AT)


def _restored(described: Mapping[str, Any], data: memoryview) -> Rollout:
    found = {name: tensor.numpy() for name, tensor in tensors_of(described, data).items()}
    return Rollout(**found)
