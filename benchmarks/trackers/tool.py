"""What the benchmark knows about a tool: how to open it, how to log a step, how to read back what is left."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from trackers.work import Block

Log = Callable[[int, dict[str, float], Block], None]
"""Logs one step. What it spends on the training thread is what is measured."""


SCALARS, TOKENS, BOTH = ("scalars",), ("tokens",), ("scalars", "tokens")


@dataclass(frozen=True)
class Tool:
    """One row of the tables.

    Attributes:
        name: As the tables show it.
        start: Opens the tool in an empty folder for "scalars" or "tokens" and gives its ``Log``; closes it at the end.
        steps_left: The steps whose scalars, and tokens if the work has them, the tool's own reader finds in the folder.
        works: The kinds of work that it is measured at.
        package: The distribution whose environment it runs in; None is entrostat's own environment.
        keeps: What it keeps of the tokens.
        no_tokens: Why it has no way to keep the tokens; None if it has.
        is_slow: A step with tokens takes tenths of a second or more: fewer of them are measured.
    """

    name: str
    start: Callable[[Path, str], AbstractContextManager[Log]]
    steps_left: Callable[[Path, str], set[int]] | None = None
    works: tuple[str, ...] = BOTH
    package: str | None = None
    keeps: str = "all"
    no_tokens: str | None = None
    is_slow: bool = False
