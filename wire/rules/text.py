"""Rules from YAML or JSON text, with every mistake named by its field and line."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from entrostat.wire.errors import BadParameter
from entrostat.wire.rules.rule import AnyRule, read_rule

MAX_CHARS = 256 * 1024
MAX_RULES = 200

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake.

    Args:
        where: the rule and the field, with the line where it is known: ``collapse-guard: when.signal (line 4)``.
        message: what is wrong and what to write.
    """

    where: str
    message: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rules that could be read, and what could not."""

    rules: tuple[AnyRule, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True)
class _Document:
    """Plain values, and the line of each path."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)


def parse(text: str) -> Parsed:
    """Rules of a list, of a mapping with the key ``rules``, or a single one. Never raises for what is in the text."""
    if len(text) > MAX_CHARS:
        return _only(Problem("the text", f"it has {len(text)} characters, at most {MAX_CHARS} are taken"))
    read = _yaml(text)
    if isinstance(read, Problem):
        return _only(read)
    listed, prefix = _listed(read.value)
    if listed is None:
        return _only(Problem("the text", "write a list of rules, or one rule with name and when (or hold)"))
    if len(listed) > MAX_RULES:
        return _only(Problem("the text", f"it has {len(listed)} rules, at most {MAX_RULES} are taken"))
    rules: list[AnyRule] = []
    problems: list[Problem] = []
    for index, document in enumerate(listed):
        path: Path = prefix if document is read.value else (*prefix, index)
        try:
            rules.append(read_rule(document))
        except ValidationError as error:
            problems += problems_of(error, _title(document, index), read.lines, path)
    names = [rule.name for rule in rules]
    problems += [Problem(name, "two rules have this name") for name in dict.fromkeys(names) if names.count(name) > 1]
    return Parsed(tuple(rules), tuple(problems))


def parse_or_raise(text: str) -> tuple[AnyRule, ...]:
    """The rules of ``text``. Raises BadParameter with all that is wrong, a line each."""
    parsed = parse(text)
    if parsed.problems:
        raise BadParameter("\n".join(f"{p.where}: {p.message}" for p in parsed.problems))
    return parsed.rules


def problems_of(
    error: ValidationError, title: str, lines: dict[Path, int] | None = None, path: Path = ()
) -> list[Problem]:
    """What pydantic found, with our own words for the places."""
    found = [(_fields(e["loc"]), e["msg"].removeprefix("Value error, ")) for e in error.errors()]
    # A list of conditions that lost its wrong ones is then called too short: only the cause is worth telling.
    places = [place for place, _ in found]
    kept = [(p, m) for p, m in found if not any(other[: len(p)] == p and len(other) > len(p) for other in places)]
    return [Problem(_where(title, place, lines or {}, path), message) for place, message in kept]


def _fields(loc: Sequence[str | int]) -> Path:
    return tuple(part for part in loc if not (isinstance(part, str) and part.startswith("<")))


def _where(title: str, place: Path, lines: dict[Path, int], path: Path) -> str:
    shown = ".".join(str(part) for part in place)
    full = (*path, *place)
    line = next((lines[full[:n]] for n in range(len(full), -1, -1) if full[:n] in lines), None)
    return (f"{title}: {shown}" if shown else title) + (f" (line {line})" if line else "")


def _title(document: Any, index: int) -> str:
    name = document.get("name") if isinstance(document, dict) else None
    return name if isinstance(name, str) and name else f"rule {index + 1}"


def _listed(value: Any) -> tuple[list[Any] | None, Path]:
    prefix: Path = ()
    if isinstance(value, dict) and set(value) == {"rules"}:
        value, prefix = value["rules"], ("rules",)
    if isinstance(value, list):
        return value, prefix
    return ([value] if isinstance(value, dict) and not prefix else None), prefix


def _only(problem: Problem) -> Parsed:
    return Parsed(problems=(problem,))


def _yaml(text: str) -> _Document | Problem:
    """YAML, which JSON is a part of, without the two things in it that bite: aliases, and keys given twice."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        return _json(text)
    try:
        node = _compose(yaml, text)
        if node is None:
            return _Document([])
        lines: dict[Path, int] = {}
        problem = _walk(yaml, node, (), lines)
        return problem or _Document(yaml.safe_load(text), lines)
    except RecursionError:
        return Problem("the text", "it is nested too deep")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        what = getattr(error, "problem", None) or str(error)
        return Problem(f"the text{line}", f"it is no YAML: {what}")
    except ValueError as error:  # a date that is none, for example
        return Problem("the text", f"a value cannot be read: {error}")


def _compose(yaml: Any, text: str) -> Any:
    # Before anything is built: ten lines of aliases of aliases can stand for a billion values.
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem=f"write *{event.anchor} out", problem_mark=event.start_mark)
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _walk(yaml: Any, node: Any, path: Path, lines: dict[Path, int]) -> Problem | None:
    """Note the line of each value; the first key that a mapping has twice."""
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                return Problem(f"{key.value} (line {key.start_mark.line + 1})", "given twice in one place")
            seen.add(key.value)
            if problem := _walk(yaml, value, (*path, key.value), lines):
                return problem
            lines[(*path, key.value)] = key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            if problem := _walk(yaml, item, (*path, index), lines):
                return problem
    return None


def _json(text: str) -> _Document | Problem:
    import json

    try:
        return _Document(json.loads(text))
    except ValueError as error:
        return Problem("the text", f"it is no JSON ({error}); for YAML install pyyaml")
    except RecursionError:
        return Problem("the text", "it is nested too deep")
