"""A step as the training thread left it on disk (``wire/handover.py``), and its rows, made by another process."""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from entrostat.probe.capture import Capture, Keep
from entrostat.probe.columns import Columns, Layout, packed, tensors_of
from entrostat.probe.definitions import Rollout, Settings
from entrostat.probe.reduce import Reducer, Tables
from entrostat.probe.rows import event_rows
from entrostat.probe.signals import Parts
from entrostat.wire.handover import DATA_AT
from entrostat.wire.mergeable import STATE_LENGTH, Part
from entrostat.wire.signals import USER_PREFIX

_VERSION = 1


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

    Two lines of JSON and the parts' numbers, so that the training thread writes as little text as may be: names and
    settings are the same at every step.

    Args:
        step: the optimizer step.
        captures: its micro-batches.
        rollouts: as the reducer's.
        more: as the reducer's, without the user's own numbers.
        users: these.
        reducer: whose settings are kept.
        keep: stores the rollouts.
    """
    described = [(c.shape, c.measured_all, c.stored.within(DATA_AT)) for c in captures if c.stored is not None]
    if len(described) < len(captures):
        return None
    kept = None
    if rollouts is not None:
        kept = [_rollout(rollout, keep) for rollout in rollouts]
        if None in kept:
            return None
    head = json.dumps(
        {
            "version": _VERSION,
            "step": step,
            "captures": described,
            "rollouts": kept,
            "num_candidates": reducer.num_candidates,
            "reads_texts": reducer.reader is not None,
        }
    )
    same = _same_every_step(reducer.settings, tuple((name, part.merge) for name, part in more.items()), tuple(users))
    numbers = array("d", [number for part in more.values() for number in part.state])
    numbers.extend(users.values())
    return b"\n".join((head.encode(), same, numbers.tobytes()))


def restore(said: bytes, data: memoryview) -> Tables:
    """The tables of a step whose process was killed before it made them, with an event that says so.

    Texts are not read: the tokenizer ended with its process.

    Raises:
        ValueError: the document is of another version of entrostat, or does not fit the data.
    """
    first, second, numbers = said.split(b"\n", maxsplit=2)
    found, same = json.loads(first), json.loads(second)
    if found.get("version") != _VERSION:
        raise ValueError(f"written by another version of entrostat (form {found.get('version')}, this has {_VERSION})")
    settings = Settings(**same["settings"] | {"without": frozenset(same["settings"]["without"])})
    reducer = Reducer(settings, found["num_candidates"], says_absences=False)
    captures = [
        Capture(tensors_of(layout, data), (shape[0], shape[1]), measured_all)
        for shape, measured_all, layout in found["captures"]
    ]
    rollouts = None if found["rollouts"] is None else [_restored(r, data) for r in found["rollouts"]]
    more = _parts([*same["parts"], *((f"{USER_PREFIX}{name}", "last") for name in same["users"])], numbers)
    tables = reducer(found["step"], captures, rollouts, more)
    return tables | {"event": pa.concat_tables([*_events(tables), _note(found)])}


@lru_cache(maxsize=16)
def _same_every_step(settings: Settings, parts: tuple[tuple[str, str], ...], users: tuple[str, ...]) -> bytes:
    return json.dumps(
        {"settings": asdict(settings) | {"without": sorted(settings.without)}, "parts": parts, "users": users}
    ).encode()


def _parts(named: Sequence[tuple[str, str]], numbers: bytes) -> Parts:
    left = iter(array("d", numbers))
    return {name: Part(merge, tuple(islice(left, STATE_LENGTH[merge]))) for name, merge in named}


def _events(tables: Tables) -> list[pa.Table]:
    return [tables["event"]] if "event" in tables else []


def _note(found: Mapping[str, Any]) -> pa.Table:
    texts = " What is read from texts is absent from it." if found["reads_texts"] else ""
    message = f"The process was killed before it had made the rows of this step; push made them.{texts}"
    return event_rows("warning", message, found["step"])


def _rollout(rollout: Rollout, keep: Keep) -> Layout | None:
    arrays = {"reward": rollout.reward, "prompt": rollout.prompt}
    pieces, layout = packed({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()})
    span = keep(pieces)
    return None if span is None else Columns(layout, span).within(DATA_AT)


def _restored(layout: Layout, data: memoryview) -> Rollout:
    return Rollout(**{name: tensor.numpy() for name, tensor in tensors_of(layout, data).items()})
