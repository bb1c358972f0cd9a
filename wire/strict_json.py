"""JSON as we take it from outside: what other readers would refuse, or read differently, is refused here."""

import json
from typing import Any

from pydantic_core import from_json

MAX_DEPTH = 200
"""Lists and objects inside each other: what is taken must be able to go out again."""


def loads(text: bytes | str, allow_nan: bool = True) -> Any:
    """The value of a JSON text in UTF-8.

    Args:
        allow_nan: take NaN and infinities, which Python writes and other readers (SQL) refuse.

    Raises:
        ValueError: not JSON; nested more than ``MAX_DEPTH`` levels; a character that is none (half a surrogate pair);
            a number of more than 4300 digits; or a name that is twice in an object, where one value would be lost.
    """
    try:
        from_json(text, allow_inf_nan=allow_nan)  # strict in all of these but the last, and fast
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"the name {name[:100]!r} is there more than once in an object")
        made[name] = value
    return made
