"""Extras: the one place that imports optional libraries; its errors describe how to install them."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from tensordict_store import errors

_LIBRARIES = {
    "h5": "h5py",
    "zarr": "zarr",
    "redis": "redis",
    "arrow": "pyarrow",
    "pandas": "pandas",
    "mds": "streaming",
}


def require(extra: str, what: str) -> ModuleType:
    """Return the library of an extra, and import it on first use.

    Args:
        extra: The name of the extra, such as ``"h5"``.
        what: The function or class that needs it, for the error message.

    Raises:
        ImportError: The library is not installed; the message is the command that installs it.

    >>> require("h5", "to_h5").__name__
    'h5py'
    """
    name = _LIBRARIES[extra]
    module = sys.modules.get(name)
    if module is not None:
        return module
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise  # a dependency of the library is missing
        raise errors.missing_extra(what, name, extra) from None
