"""Watch a policy's entropy while a language model is trained, see which tokens move it, and act on it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from entrostat.trainer_adapters.attach import Handle as Handle
    from entrostat.trainer_adapters.attach import attach as attach
    from entrostat.trainer_adapters.hf_callback import Callback as Callback
    from entrostat.trainer_adapters.plain_torch import Probe as Probe
    from entrostat.trainer_adapters.reference import FrozenCopy as FrozenCopy

__all__ = ["Callback", "FrozenCopy", "Handle", "Probe", "__version__", "attach"]

__version__ = "0.1.0.dev0"

# The face is late: `import entrostat.server` must not bring torch into the server's image.
_HOMES = {
    "attach": "entrostat.trainer_adapters.attach",
    "Handle": "entrostat.trainer_adapters.attach",
    "Callback": "entrostat.trainer_adapters.hf_callback",
    "FrozenCopy": "entrostat.trainer_adapters.reference",
    "Probe": "entrostat.trainer_adapters.plain_torch",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'entrostat' has no attribute {name!r}")
