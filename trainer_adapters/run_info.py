"""What a run says of itself: host, git commit, versions, settings. Gathered once, at the start."""

import os
import socket
import subprocess
import uuid
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from entrostat.wire.redaction import is_secret, redacted

_PACKAGES = ("entrostat", "torch", "transformers", "trl", "accelerate", "peft", "deepspeed", "vllm", "verl")
_JSON = (int, float, bool, type(None))
_MOST_LEVELS = 20
"""Settings inside settings; a server refuses what is nested without end."""


def new_id() -> str:
    """128 random bits as hex: a stream's or a session's name. Not from the trainer's random state."""
    return uuid.uuid4().hex


def new_run_id(trainer: str) -> str:
    """A run's name when the user gave none: the trainer's class and eight random hex digits."""
    return f"{trainer.rsplit('.', 1)[-1].lower()}-{uuid.uuid4().hex[:8]}"


def versions() -> dict[str, str]:
    """Package -> version, of those that matter and are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The commit of the working directory's checkout, with ``-dirty`` where files differ; None outside one."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()[:64] or None


def host() -> tuple[str, int]:
    """Host name and process number."""
    return socket.gethostname()[:256], os.getpid()


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are plain JSON values, or lists or mappings of them; what is named like a secret is out.

    What looks like a password or a token in a value is replaced, see ``wire/redaction.py``.
    """
    kept: dict[str, Any] = _plain(values, _MOST_LEVELS)
    return kept


def _plain(values: Mapping[str, Any], levels: int) -> dict[str, Any]:
    kept = {_text(name): _plain_value(value, levels - 1) for name, value in values.items() if not is_secret(str(name))}
    return {name: value for name, value in kept.items() if value is not _DROP}


_DROP = object()


def _text(value: object) -> str:
    return redacted(str(value)).encode(errors="replace").decode()  # half a surrogate pair is no text that can be sent


def _plain_value(value: Any, levels: int) -> Any:
    if isinstance(value, float) and value != value:
        return _DROP
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, _JSON):
        return value
    if isinstance(value, Mapping) and levels:
        return _plain(value, levels)
    if isinstance(value, (list, tuple)) and levels:
        return [v for item in value if (v := _plain_value(item, levels - 1)) is not _DROP]
    return _DROP
