"""What a hook's place looks like in the installed source, read and not imported.

verl and vLLM take seconds to import, want a device, and register things when they are; a broken one cannot be imported
at all, which is when people ask ``entrostat doctor``. So places are found in the syntax tree: names that a module takes
from another module of the same package, and methods that a class has from its bases, are followed.
"""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from entrostat.trainer_adapters.hooks import Hook, Trainer

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_MOST_HOPS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One hook, compared with what is installed.

    Args:
        hook: the declaration.
        parameters: found, without ``self``; None where the place does not exist.
        missing: what of the place does not exist, as a phrase; None where all of it does.
    """

    hook: Hook
    parameters: list[str] | None
    missing: str | None = None

    @property
    def is_as_expected(self) -> bool:
        """Whether an adapter can rely on it."""
        return self.hook.fits(self.parameters)


@dataclass(slots=True)
class Sources:
    """The source files of installed packages.

    Args:
        root: the folder that holds the packages; None: wherever Python would import them from.
    """

    root: Path | None = None
    _trees: dict[str, ast.Module | None] = field(default_factory=dict)

    def find(self, hook: Hook) -> Finding:
        """Look the hook's place up. Raises nothing for a place that is not there."""
        if self.tree(hook.module) is None:
            return Finding(hook, None, f"there is no module {hook.module} that can be read")
        if hook.owner is None:
            place = self._resolve(hook.module, hook.name)
        else:
            owner = self._resolve(hook.module, hook.owner)
            if owner is None or not isinstance(owner[1], ast.ClassDef):
                return Finding(hook, None, f"there is no class {hook.owner} in {hook.module}")
            place = self._method(*owner, hook.name)
        if place is None or not isinstance(place[1], _Function):
            return Finding(hook, None, f"there is no {hook.name}")
        names = _parameters(place[1])
        is_method = hook.owner is not None and names[:1] in (["self"], ["cls"])
        return Finding(hook, names[1:] if is_method else names)

    def tree(self, module: str) -> ast.Module | None:
        """The syntax tree of a module; None where it has no source file."""
        if module not in self._trees:
            self._trees[module] = _parsed(self._path(module))
        return self._trees[module]

    def _path(self, module: str) -> Path | None:
        top, *rest = module.split(".")
        folder = self._package(top)
        if folder is None:
            return None
        base = folder.joinpath(*rest)
        choices = (base / "__init__.py", base.with_suffix(".py"))
        return next((path for path in choices if path.is_file()), None)

    def _package(self, top: str) -> Path | None:
        if self.root is not None:
            return self.root / top
        # Of a top-level name only: for a name with dots find_spec imports the packages above it.
        spec = importlib.util.find_spec(top)
        where = None if spec is None else spec.submodule_search_locations
        return Path(next(iter(where))) if where else None

    def _resolve(self, module: str, name: str, hops: int = 0) -> tuple[str, ast.stmt] | None:
        """The module in which ``name`` is defined, and its definition."""
        tree = self.tree(module)
        if tree is None or hops > _MOST_HOPS:
            return None
        for statement in _statements(tree.body):
            match statement:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name == name:
                    return module, statement
                case ast.ImportFrom():
                    for alias in statement.names:
                        if (alias.asname or alias.name) == name:
                            return self._resolve(self._origin(module, statement), alias.name, hops + 1)
        return None

    def _origin(self, module: str, statement: ast.ImportFrom) -> str:
        """The module that an import names, seen from ``module``."""
        if statement.level == 0:
            return statement.module or ""
        path = self._path(module)
        is_package = path is not None and path.name == "__init__.py"
        parts = module.split(".")
        parts = parts[: len(parts) - statement.level + (1 if is_package else 0)]
        return ".".join([*parts, *([statement.module] if statement.module else [])])

    def _method(self, module: str, owner: ast.stmt, name: str, hops: int = 0) -> tuple[str, ast.stmt] | None:
        """The first class, of ``owner`` and its bases, that defines the method."""
        if not isinstance(owner, ast.ClassDef) or hops > _MOST_HOPS:
            return None
        for statement in _statements(owner.body):
            if isinstance(statement, _Function) and statement.name == name:
                return module, statement
        for base in owner.bases:
            known = self._resolve(module, base.id) if isinstance(base, ast.Name) else None
            found = None if known is None else self._method(*known, name, hops + 1)
            if found is not None:
                return found
        return None


def report(trainer: Trainer, version: str | None, sources: Sources | None = None) -> Iterator[tuple[str, str]]:
    """What ``doctor`` prints about one trainer: a mark and a sentence each.

    Marks are ``ok``, ``note`` (a version that nobody tried here, with all hooks in place), ``FIX`` (older than what is
    known, or a hook that is not as expected) and ``-`` (not installed).

    Args:
        trainer: the declaration.
        version: that is installed; None: it is not.
        sources: where to look; None: wherever Python would import from.
    """
    if version is None:
        yield "-", f"{trainer.title}: not installed; known are {trainer.known}"
        return
    sources = sources or Sources()
    findings = [sources.find(hook) for hook in trainer.hooks]
    moved = [finding for finding in findings if not finding.is_as_expected]
    uses = {hook.use: None for hook in trainer.hooks}
    broken = {finding.hook.use for finding in moved}
    yield _about_version(trainer, version, is_whole=not moved)
    if works := [use for use in uses if use not in broken]:
        count = sum(hook.use not in broken for hook in trainer.hooks)
        yield "ok", f"{trainer.title}: {', '.join(works)} ({count} hooks as expected)"
    for finding in moved:
        hook = finding.hook
        found = finding.missing or f"found ({', '.join(finding.parameters or ())})"
        yield "FIX", f"{trainer.title}: no {hook.use}: {hook.place} expected ({', '.join(hook.arguments)}), {found}"
    if moved:
        yield "FIX", f"{trainer.title}: install {trainer.known}, update entrostat, or {trainer.otherwise}"


def _about_version(trainer: Trainer, version: str, is_whole: bool) -> tuple[str, str]:
    release = _release(version)
    if release < _release(trainer.oldest):
        return "FIX", f"{trainer.title} {version}: older than known ({trainer.known}): install one of those"
    if release > _release(trainer.newest):
        then = "what entrostat relies on is as expected" if is_whole else "and what entrostat relies on has moved"
        return "note", f"{trainer.title} {version}: newer than what was tried ({trainer.known}); {then}"
    return "ok", f"{trainer.title} {version}: among those known ({trainer.known})"


def _release(version: str) -> tuple[int, ...]:
    """``1.16.0rc1`` -> (1, 16)."""
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:2])


def _parsed(path: Path | None) -> ast.Module | None:
    if path is None:
        return None
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError:  # written for a newer Python
        return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module or a class, those under ``if`` and ``try`` included."""
    for statement in body:
        yield statement
        match statement:
            case ast.If():
                yield from _statements([*statement.body, *statement.orelse])
            case ast.Try():
                handlers = [inner for handler in statement.handlers for inner in handler.body]
                yield from _statements([*statement.body, *statement.orelse, *handlers])


def _parameters(function: _Function) -> list[str]:
    """Names in the order of ``inspect.signature``."""
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    names += [given.vararg.arg] if given.vararg else []
    names += [argument.arg for argument in given.kwonlyargs]
    return names + ([given.kwarg.arg] if given.kwarg else [])
