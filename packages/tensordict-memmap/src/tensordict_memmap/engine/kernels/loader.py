"""Loader: compiles kernels once, caches their machine code on disk, and calls them without Numba.

Importing Numba and loading a kernel from Numba's own cache takes half a second and 120 MB; LLVM alone, which llvmlite
brings, loads the same code in 30 ms. So kernels need nothing of Numba when they run (``pack.py``). One file holds the
object code of the kernels for one item width. Its name is a hash of the versions, the sources and the processor that
the code depends on, and its first line is a checksum.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import json
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from tensordict_memmap.engine.checksums import checksum_of

_C_LIBRARY = {"memcpy"}
"""The external functions that compiled kernels may call."""

_SOURCES = ("pack.py", "intrinsics.py", "loader.py")

_Symbols = dict[str, tuple[str, int]]
"""The symbol of each kernel, and how many arguments it takes."""

_lock = threading.RLock()  # Numba and LLVM compile in one thread at a time
_functions: dict[int, dict[str, Callable[..., int]]] = {}
_engines: list[Any] = []  # they own the code


# --- calls: sizes, strides and indices are arrays of 64-bit integers; ``pack.py`` documents each kernel


def pack_range(
    target: int, source: int, shape: np.ndarray, strides: np.ndarray, axis: int, first: int, last: int, width: int
) -> None:
    """Pack the items ``first`` to ``last`` (in C order) of a strided array that is dense along ``axis``."""
    layout = _address(shape), _address(strides), shape.size
    functions(width)["pack_range"](target, source, *layout, axis, first, last, 0)


def pack_block(
    target: int,
    source: int,
    shape: np.ndarray,
    strides: np.ndarray,
    axis: int,
    row: int,
    rows: int,
    first: int,
    last: int,
    width: int,
) -> None:
    """Pack, for ``rows`` steps along ``axis``, the items ``first`` to ``last`` of the axes behind it."""
    layout = _address(shape), _address(strides), shape.size
    functions(width)["pack_block"](target, source, *layout, axis, row, rows, first, last, 0)


def _address(numbers: np.ndarray) -> int:
    assert numbers.dtype == np.int64 and numbers.flags.c_contiguous
    return int(numbers.ctypes.data)


def functions(width: int) -> dict[str, Callable[..., int]]:
    """Load the kernels for an item width, compiling them if needed, as C functions that run without the GIL.

    Args:
        width: The bytes of the items that the kernels move.

    Raises:
        RuntimeError: Numba compiled a kernel to code that is not self-contained.
        ImportError: The kernels are not cached, and Numba is not installed.

    >>> sorted(functions(4))
    ['pack_block', 'pack_range']
    """
    found = _functions.get(width)
    if found is None:
        with _lock:
            found = _functions.get(width)
            if found is None:
                found = _functions[width] = _load(*(_read_cache(width) or _compile(width)))
    return found


def is_cached(width: int) -> bool:
    """Return whether the kernels for a width are compiled already, by this process or an earlier one."""
    return width in _functions or _read_cache(width) is not None


# --- cache


@functools.cache
def _key() -> str:
    """Return a hash of everything that the code depends on: sources, versions and processor."""
    sources = [Path(__file__).with_name(name).read_text() for name in _SOURCES]
    versions = llvmlite.__version__, importlib.metadata.version("numba")
    target = llvm.get_default_triple(), *_processor()
    return checksum_of(json.dumps([sources, versions, target]).encode()).rpartition(":")[2]


def _folders() -> Iterator[str]:
    """Yield the folders that may hold the cache: the user's choice, or where Numba keeps its own, and a private one."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        yield os.path.join(chosen, "tensordict-memmap")
        return
    yield os.path.join(os.path.dirname(__file__), "__pycache__")
    home = os.path.expanduser("~")
    if home != "~":
        yield os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "tensordict-memmap")
    yield _private_folder()


def _private_folder() -> str:
    """Return a folder of this user alone, for machines where neither the package nor the home folder can be written.

    The folder holds code, so one that another user made or may write to is not used.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = os.path.join(tempfile.gettempdir(), f"tensordict-memmap-{user}")
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        info = os.lstat(folder)
        ours = not hasattr(os, "getuid") or (info.st_uid == user and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        if ours and stat.S_ISDIR(info.st_mode):
            return folder
    return tempfile.mkdtemp(prefix="tensordict-memmap-")


def _cache_name(width: int) -> str:
    return f"kernels-{width}.{_key()}.object"


def _read_cache(width: int) -> tuple[_Symbols, bytes] | None:
    """Return the symbols and the code that an earlier process cached; None where there are none or damaged ones."""
    for folder in _folders():
        with contextlib.suppress(OSError, ValueError):
            checksum, symbols, code = Path(folder, _cache_name(width)).read_bytes().split(b"\n", 2)
            if checksum == checksum_of(symbols + code).encode():
                return json.loads(symbols), code
    return None


def _write_cache(width: int, symbols: _Symbols, code: bytes) -> None:
    text = json.dumps(symbols).encode()
    data = b"\n".join((checksum_of(text + code).encode(), text, code))
    for folder in _folders():
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                try:
                    file.write(data)
                    file.close()
                    os.replace(file.name, os.path.join(folder, _cache_name(width)))
                except BaseException:
                    os.unlink(file.name)
                    raise
            return


# --- code


def _machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = _processor()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="jitdefault")


def _processor() -> tuple[str, str]:
    try:
        return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM does not know the features on every system
        return llvm.get_host_cpu_name(), ""


def _compile(width: int) -> tuple[_Symbols, bytes]:
    """Compile the kernels for a width with Numba, and cache the code where a folder can be written."""
    from tensordict_memmap.engine.kernels.pack import entries  # imports Numba

    whole, symbols = llvm.parse_assembly(""), {}
    for name, compiled in entries(width).items():
        symbols[name] = compiled.native_name, len(compiled.ctypes.argtypes)
        whole.link_in(llvm.parse_assembly(compiled.inspect_llvm()))
    calls = {one.name for one in whole.functions if one.is_declaration and not one.name.startswith("llvm.")}
    if not calls <= _C_LIBRARY:  # LLVM ends the process where a symbol is missing
        raise RuntimeError(
            f"compiled kernels call {sorted(calls - _C_LIBRARY)}, and may call only the C library; install the version "
            "of Numba that this package was tested with"
        )
    code = _machine().emit_object(whole)
    _write_cache(width, symbols, code)
    return symbols, code


def _load(symbols: _Symbols, code: bytes) -> dict[str, Callable[..., int]]:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments)(engine.get_function_address(symbol))
        for name, (symbol, arguments) in symbols.items()
    }


def _new_lock_after_fork() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock_after_fork)
