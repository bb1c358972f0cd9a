"""What verl loads in every process, by its entry-point group ``verl.plugins``: nothing, unless ``ENTROSTAT_VERL=1``.

verl imports its plugins at the end of ``import verl`` and swallows what they raise (at DEBUG). So nothing is done here
that may fail: the taps are put in when verl's FSDP engine and its worker are imported, by whoever needs them. A hook
that has moved is an ``AttachError`` there, in the process that was about to train, where nobody swallows it.

A process without an engine (the driver, a rollout server) imports nothing more than it would without us.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

log = logging.getLogger("entrostat")

SWITCH = "ENTROSTAT_VERL"
ENGINE = "verl.workers.engine.fsdp.transformer_impl"
WORKER = "verl.workers.engine_workers"
_ON, _OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def is_wanted() -> bool:
    """Whether the user switched us on: ``ENTROSTAT_VERL`` is 1, true, yes or on.

    Raises:
        ValueError: it is something else, with what it may be.
    """
    value = os.environ.get(SWITCH, "").strip().lower()
    if value not in (*_ON, *_OFF):
        raise ValueError(f"{SWITCH}={value!r}: set it to 1 to record verl's runs, or unset it")
    return value in _ON


def activate() -> None:
    """Have the taps put in as soon as the engine and the worker are imported; at once where they have been."""
    for name in (ENGINE, WORKER):
        if not _exists(name):
            _say(
                f"{SWITCH} is set, but this verl has no {name}: nothing will be recorded. entrostat knows verl 0.9; "
                f"install verl 0.9.1, update entrostat, or unset {SWITCH}"
            )
        elif name in sys.modules:
            _install(sys.modules[name])
        elif not any(isinstance(finder, _WhenImported) and finder.name == name for finder in sys.meta_path):
            sys.meta_path.insert(0, _WhenImported(name, _install))


def _install(module: ModuleType) -> None:
    from entrostat.trainer_adapters.verl.taps import install, install_worker
    from entrostat.wire.errors import AttachError

    try:
        if module.__name__ == ENGINE:
            install()
        else:
            install_worker()
    except AttachError as error:
        _say(str(error))
        raise


def _say(message: str) -> None:
    # Both: Ray keeps a worker's stderr, and a user's logging may have other plans for ours.
    print(f"entrostat: {message}", file=sys.stderr, flush=True)  # noqa: T201
    log.error("%s", message)


def _exists(module: str) -> bool:
    """Whether the installed verl has a file for ``module``; asked of the disk, for asking Python would import it."""
    package, _, rest = module.partition(".")
    found = importlib.util.find_spec(package)
    roots = [] if found is None or found.submodule_search_locations is None else found.submodule_search_locations
    return any(Path(root, *rest.split(".")).with_suffix(".py").is_file() for root in roots)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Calls ``then`` with one module, right after it has been executed for the first time."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then
        self._is_asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenLoader(spec.loader, self.then)
        return spec


class _ThenLoader(importlib.abc.Loader):
    """Another loader, and something to do with the module afterwards."""

    def __init__(self, loader: importlib.abc.Loader, then: Callable[[ModuleType], None]) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.then(module)


try:
    if is_wanted():
        activate()
except ValueError as error:
    _say(str(error))
