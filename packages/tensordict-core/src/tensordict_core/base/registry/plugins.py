"""Plugins: imports tensordict-memmap, -nn, -class and -store when a method needs them.

Core declares methods that these distributions (*satellites*) implement, such as ``td.memmap`` and ``from_module``. The
first call imports the satellite. If it is not installed, an ``ImportError`` names the command that installs it; an
error while it is imported propagates.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

from tensordict_core.base import errors
from tensordict_core.base.tracing import constant_when_traced, is_compiling

_loaded: dict[str, ModuleType] = {}


def satellite(name: str, what: str) -> ModuleType:
    """Return the module of a satellite, and import it on first use.

    Args:
        name: The import name of the satellite.
        what: The method that needs it, for the error message.

    Raises:
        ImportError: The satellite is not installed.
    """
    if is_compiling() or name not in _loaded:  # Dynamo has to read the table after the import
        _import(name, what)
    return _loaded[name]


@constant_when_traced
def _import(name: str, what: str) -> None:
    if name in _loaded:
        return
    try:
        absent = name not in sys.modules and find_spec(name) is None
    except ValueError:  # sys.modules holds a module without a spec
        absent = False
    if absent or (name in sys.modules and sys.modules[name] is None):
        raise errors.missing_satellite(what, name.replace("_", "-"))
    _loaded[name] = importlib.import_module(name)


def is_loaded(name: str) -> bool:
    """Return whether a satellite is imported, so that instances of its types can exist."""
    return name in _loaded or sys.modules.get(name) is not None
