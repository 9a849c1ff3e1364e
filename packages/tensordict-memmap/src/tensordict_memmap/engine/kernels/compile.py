"""Machine code: Numba compiles a kernel once, and every later process loads what it made without Numba.

To import Numba and have it load a kernel from its own cache takes half a second and 120 MB; LLVM alone, which llvmlite
brings, loads the same code in 30 ms. So kernels are written such that they need nothing of Numba when they run
(``kernels.py``), and a file holds the object code of those for one width: its name says which versions, source and
processor it is for, and a checksum that it is whole.
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

from tensordict_memmap.engine.checksums import checksum_of

__all__ = ["functions", "is_kept"]

_C_LIBRARY = {"memcpy", "memmove", "memset", "pwrite", "__errno_location", "__error"}
"""What compiled kernels may call."""

_SOURCES = ("pack.py", "intrinsics.py", "digest.py", "compile.py")

_Symbols = dict[str, tuple[str, int]]
"""The symbol of each kernel, and how many arguments it takes."""

_lock = threading.RLock()  # Numba and LLVM compile in one thread at a time
_functions: dict[int, dict[str, Callable[..., int]]] = {}
_engines: list[Any] = []  # they own the code


def functions(width: int) -> dict[str, Callable[..., int]]:
    """The kernels for a width as C functions of 64-bit integers, which run without the GIL.

    Args:
        width: the bytes of the items that they move; 0 for those that move any number of bytes.

    Raises:
        RuntimeError: Numba compiled one to something that does not stand alone.
        ImportError: They are compiled nowhere yet, and there is no Numba.

    >>> functions(0)["write_all"](-1, 0, 0, 0)
    0
    """
    found = _functions.get(width)
    if found is None:
        with _lock:
            found = _functions.get(width)
            if found is None:
                found = _functions[width] = _load(*(_kept(width) or _compiled(width)))
    return found


def is_kept(width: int) -> bool:
    """Whether the kernels for a width are compiled already, by this process or an earlier one."""
    return width in _functions or _kept(width) is not None


# --- files


@functools.cache
def _key() -> str:
    """What the code depends on: another version, source or processor has other files."""
    sources = [Path(__file__).with_name(name).read_text() for name in _SOURCES]
    versions = llvmlite.__version__, importlib.metadata.version("numba")
    target = llvm.get_default_triple(), *_processor()
    return checksum_of(json.dumps([sources, versions, target]).encode()).rpartition(":")[2]


def _folders() -> Iterator[str]:
    """Where files may lie, as with Numba's own: a folder of the user's choice, or beside the module, then at home."""
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
    """A folder of this user alone, for machines where neither the package nor the home folder can be written.

    What lies there is code, so a folder that another user made or may write to is not taken.
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


def _file(width: int) -> str:
    return f"kernels-{width}.{_key()}.object"


def _kept(width: int) -> tuple[_Symbols, bytes] | None:
    """The symbols and the code that an earlier process left; None where there are none, or not whole."""
    for folder in _folders():
        with contextlib.suppress(OSError, ValueError):
            checksum, symbols, code = Path(folder, _file(width)).read_bytes().split(b"\n", 2)
            if checksum == checksum_of(symbols + code).encode():
                return json.loads(symbols), code
    return None


def _keep(width: int, symbols: _Symbols, code: bytes) -> None:
    text = json.dumps(symbols).encode()
    checksum = checksum_of(text + code).encode()
    for folder in _folders():
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            fd, draft = tempfile.mkstemp(dir=folder)
            try:
                with open(fd, "wb") as file:
                    file.write(b"\n".join((checksum, text, code)))
                os.replace(draft, os.path.join(folder, _file(width)))
            except OSError:
                os.unlink(draft)
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
    except RuntimeError:  # LLVM cannot tell on every system
        return llvm.get_host_cpu_name(), ""


def _compiled(width: int) -> tuple[_Symbols, bytes]:
    """Has Numba compile the kernels for a width, and keeps the code where it can."""
    from tensordict_memmap.engine.kernels.pack import entries

    whole, symbols = llvm.parse_assembly(""), {}
    for name, compiled in entries(width).items():
        symbols[name] = compiled.native_name, len(compiled.ctypes.argtypes)
        whole.link_in(llvm.parse_assembly(compiled.inspect_llvm()))
    calls = {one.name for one in whole.functions if one.is_declaration and not one.name.startswith("llvm.")}
    if not calls <= _C_LIBRARY:  # LLVM ends the process where it finds none of a name
        raise RuntimeError(
            f"kernels call nothing but the C library, and they were compiled to call {sorted(calls - _C_LIBRARY)}; "
            "install the version of Numba that this package was tested with"
        )
    code = _machine().emit_object(whole)
    _keep(width, symbols, code)
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
