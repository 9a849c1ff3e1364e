"""Machine code is compiled once, kept whole where it can be, and loaded without Numba."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.kernels import loader, pack

pytestmark = pytest.mark.skipif(not syscalls.POSIX, reason="kernels are used on POSIX systems")

LOAD = "from tensordict_memmap.engine.kernels import loader; loader.functions(1)\n"


def fresh(script, folder, *arguments):
    """What a new process prints that keeps kernels in a folder of its own."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def the_file(folder):
    (path,) = Path(folder).rglob("*.object")
    return path


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder in which one process left the kernels for one width."""
    folder = tmp_path_factory.mktemp("kept")
    fresh(LOAD, folder)
    return folder


def test_the_next_process_loads_compiled_kernels_without_numba(kept):
    script = "import sys; sys.modules['numba'] = None\n" + LOAD
    before = the_file(kept).read_bytes()
    fresh(script, kept)
    assert the_file(kept).read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[:-1], lambda data: data[:2000] + b"?" + data[2001:], lambda data: b"x" * 99],
    ids=["empty", "cut off", "a byte changed", "something else"],
)
def test_a_file_that_is_not_whole_is_made_again(tmp_path, kept, monkeypatch, damage):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(kept))
    whole = loader._read_cache(1)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    path = tmp_path / the_file(kept).relative_to(kept)
    path.parent.mkdir()
    path.write_bytes(damage(the_file(kept).read_bytes()))
    assert loader._read_cache(1) is None
    loader._write_cache(1, *whole)
    assert loader._read_cache(1) == whole
    assert path.read_bytes() == the_file(kept).read_bytes()


def test_another_version_source_or_processor_has_another_file(monkeypatch):
    names = set()
    changes = [
        ("_SOURCES", ("pack.py",)),
        ("_processor", lambda: ("another", "")),
        ("llvmlite", type("other", (), {"__version__": "0"})),
        ("_SOURCES", loader._SOURCES),
    ]
    for name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(loader, name, value)
            loader._key.cache_clear()
            names.add(loader._cache_name(4))
    loader._key.cache_clear()
    assert len(names) == len(changes)
    assert loader._cache_name(4) in names
    assert loader._cache_name(8) not in names


def test_kernels_call_nothing_but_the_c_library(monkeypatch):
    monkeypatch.setattr(loader, "_C_LIBRARY", set())
    monkeypatch.setattr(loader, "_write_cache", lambda *arguments: pytest.fail("kept what calls something else"))
    with pytest.raises(RuntimeError, match="memcpy"):
        loader._compile(1)


def test_every_kernel_of_a_width_is_compiled():
    for width in pack.UNITS:
        assert set(loader.functions(width)) == {kernel.__name__ for kernel in pack.KERNELS}


def test_kernels_are_kept_where_neither_package_nor_home_can_be_written(tmp_path):
    script = """
        import os, sys, tempfile
        from tensordict_memmap.engine.kernels import loader
        tempfile.tempdir = sys.argv[1]
        # As on a machine where both are read-only; root may write anywhere, so permissions would not do.
        folders = loader._folders
        def unwritable():
            *others, private = folders()
            assert len(others) == 2
            yield from (os.path.join(sys.executable, "no folder") for _ in others)
            yield private
        loader._folders = unwritable
        loader.functions(1)
        loader._functions.clear()
        print(loader.is_cached(1))
    """
    assert fresh(script, "", tmp_path) == ["True"]
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0, "code that is kept is nobody else's to write"


def test_a_private_folder_that_others_may_write_to_is_not_taken(tmp_path):
    script = """
        import os, sys, tempfile
        from tensordict_memmap.engine.kernels import loader
        tempfile.tempdir = sys.argv[1]
        folder = loader._private_folder()
        os.chmod(folder, 0o777)
        print(loader._private_folder() == folder)
        os.chmod(folder, 0o700)
        print(loader._private_folder() == folder)
    """
    assert fresh(script, "", tmp_path) == ["False", "True"]
