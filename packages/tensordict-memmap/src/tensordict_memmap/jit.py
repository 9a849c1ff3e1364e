"""How kernels are compiled: without the GIL, and cached on disk even where the package folder cannot be written."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from typing import TypeVar, cast

import numba
from numba.core import config

F = TypeVar("F", bound=Callable[..., object])


def private_cache_folder() -> str:
    """A cache folder of this user alone, for machines where neither the package nor the home folder can be written.

    Cached kernels are code, so a folder that another user made or may write to is not taken.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = os.path.join(tempfile.gettempdir(), f"tensordict-memmap-{user}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    info = os.lstat(folder)
    ours = not hasattr(os, "getuid") or (info.st_uid == user and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    if ours and stat.S_ISDIR(info.st_mode):
        return folder
    return tempfile.mkdtemp(prefix="tensordict-memmap-")


def kernel(function: F) -> F:
    """Compiles a function on its first call, to run without the GIL, and keeps the machine code on disk.

    Numba looks for a folder by ``NUMBA_CACHE_DIR``, beside the source, then in the home folder, and gives up with a
    ``RuntimeError`` where it can write to none: then a private temporary folder serves.
    """
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:
        config.CACHE_DIR = private_cache_folder()  # type: ignore[attr-defined]  # set when numba is imported
        return cast(F, numba.njit(nogil=True, cache=True)(function))
