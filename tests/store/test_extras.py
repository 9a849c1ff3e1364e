"""Extras: optional libraries are imported when they are used; a missing one is an error with the command to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARIES = ("h5py", "zarr", "redis", "pyarrow", "pandas", "streaming")


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, where nothing has been imported yet."""
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


def test_importing_the_package_imports_no_library_of_an_extra():
    ran = fresh(f"import sys, tensordict_store\nprint(*sorted({{*{LIBRARIES!r}}} & set(sys.modules)))")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == []


@pytest.mark.parametrize(
    ("library", "extra", "call"),
    [
        ("h5py", "h5", "td.to_h5('x.h5')"),
        ("h5py", "h5", "TensorDict.from_h5('x.h5')"),
        ("h5py", "h5", "tensordict_store.PersistentTensorDict(filename='x.h5')"),
        ("zarr", "zarr", "td.to_zarr('x.zarr')"),
        ("zarr", "zarr", "TensorDict.from_zarr('x.zarr')"),
        ("redis", "redis", "td.to_store()"),
        ("redis", "redis", "tensordict_store.LazyStackedTensorDictStore(count=1, inner_batch_size=[])"),
    ],
)
def test_a_missing_library_is_an_import_error_that_names_the_command(library, extra, call):
    ran = fresh(
        f"import sys; sys.modules[{library!r}] = None\n"
        "import torch, tensordict_store\nfrom tensordict_core import TensorDict\n"
        f"td = TensorDict({{'a': torch.ones(2)}}, [2])\n{call}"
    )
    assert ran.returncode != 0
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and f'needs {library}: pip install "tensordict-store[{extra}]"' in last


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("TensorDict.to_h5", "td.to_h5('x.h5')"),
        ("TensorDict.from_h5", "TensorDict.from_h5('x.h5')"),
        ("TensorDict.to_zarr", "td.to_zarr('x.zarr')"),
        ("TensorDict.from_zarr", "TensorDict.from_zarr('x.zarr')"),
        ("TensorDict.to_store", "td.to_store()"),
    ],
)
def test_core_without_the_package_names_the_command(what, call):
    ran = fresh(
        "import sys; sys.modules['tensordict_store'] = None\n"
        "import torch\nfrom tensordict_core import TensorDict\n"
        f"td = TensorDict({{'a': torch.ones(2)}}, [2])\n{call}"
    )
    last = ran.stderr.strip().splitlines()[-1]
    assert last == f"ImportError: {what} needs tensordict-store: pip install tensordict-store"
