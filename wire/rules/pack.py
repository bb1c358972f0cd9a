"""The built-in pack: rules for the failures that are known, each silent on healthy runs (``tests/server/rules``)."""

from importlib.resources import files

from entrostat.wire.rules.rule import AnyRule
from entrostat.wire.rules.text import parse_or_raise


def pack_text() -> str:
    """The pack as YAML, to be read, changed and put on a server."""
    return files("entrostat.wire.rules").joinpath("pack.yaml").read_text("utf-8")


def pack() -> tuple[AnyRule, ...]:
    """The rules of the pack."""
    return parse_or_raise(pack_text())
