"""Optional distributions: imports tensordict-memmap, -nn and -class when a method needs them.

Core names methods that satellites implement (``td.memmap``, ``from_module``); the satellite is imported when one is
first called, and kept. One that is absent is an ``ImportError`` with the command that installs it; one that is
installed but broken shows its own error.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

from tensordict_core.base import errors

__all__ = ["is_loaded", "satellite"]

_DISTRIBUTIONS = {
    "tensordict_memmap": "tensordict-memmap",
    "tensordict_nn": "tensordict-nn",
    "tensordict_class": "tensordict-class",
}
_loaded: dict[str, ModuleType] = {}


def satellite(name: str, what: str) -> ModuleType:
    """Return the module of a satellite and import it on first use.

    Args:
        name: Its import name.
        what: What needs it, for the error.

    Raises:
        ImportError: It is not installed.
    """
    module = _loaded.get(name)
    if module is None:
        try:
            absent = name not in sys.modules and find_spec(name) is None
        except ValueError:  # a module without a spec was put into sys.modules by hand
            absent = False
        if absent or (name in sys.modules and sys.modules[name] is None):
            raise errors.missing_satellite(what, _DISTRIBUTIONS[name])
        module = _loaded[name] = importlib.import_module(name)
    return module


def is_loaded(name: str) -> bool:
    """Whether a satellite has been imported, so that its types can exist."""
    return name in _loaded or sys.modules.get(name) is not None
