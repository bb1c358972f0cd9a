"""What must not leave the trainer's process: passwords and tokens in settings, tags, messages. By name, and by look."""

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "<redacted>"

_OF_A_TOKENIZER = ("pad", "eos", "bos", "unk", "mask", "sep", "cls", "image", "video", "audio", "think", "end", "start")
_OF_A_LOCK = ("^", "api", "access", "secret", "private", "auth", "ssh", "encryption", "signing", "license", "account")
_SECRET_NAME = re.compile(
    "".join(rf"(?<!{name}_)" for name in _OF_A_TOKENIZER)
    + rf"token$|(?:{'|'.join(_OF_A_LOCK)})_?key$"
    + r"|secret|passw|passphrase|pwd$|credential|authorization|bearer|cookie|connection_?string|dsn$",
    re.IGNORECASE,
)
"""Of settings; not the ``eos_token`` of a tokenizer, nor the ``prompt_key`` of a table."""
_SECRET_TEXT = re.compile(
    r"""(?<=://)[^/\s:@"']*:[^/\s@"']+(?=@)          # name:password of an address
    | \b(?:hf|es|gh[pousr]|glpat|xox[abprs]|sk|rk|pk|nvapi|wandb_v\d)[_-]          # tokens that say whose they are,
      (?=[\w-]*\d)(?=[\w-]*(?-i:[A-Z]))[\w-]{16,}                                # not names of data in Spanish
    | \bgithub_pat_\w{20,} | \bA(?:KIA|SIA)[0-9A-Z]{16}\b
    | \beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*           # signed web tokens
    | (?<=bearer\ )[\w.~+/-]{16,}=*
    | -----BEGIN[ A-Z]*PRIVATE\ KEY-----.*""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def is_secret(name: str) -> bool:
    """Whether a setting of that name is one: ``hub_token``, ``WANDB_API_KEY``, ``db_password``."""
    return bool(_SECRET_NAME.search(name))


def redacted(text: str) -> str:
    """``text`` without what looks like a password or a token."""
    return _SECRET_TEXT.sub(REDACTED, text)


def redacted_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same for all texts in a mapping, however deep."""
    return {name: _redacted_value(value) for name, value in values.items()}


def redacted_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """A run's tags; of one that is named like a secret it is only said that it is there."""
    return {name: REDACTED if is_secret(name) else redacted(value) for name, value in tags.items()}


def _redacted_value(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return redacted_values(value)
    return [_redacted_value(item) for item in value] if isinstance(value, (list, tuple)) else value
