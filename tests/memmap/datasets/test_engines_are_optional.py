"""Engines for data are imported by their own modules only, which say how to install them."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_package_imports_no_engine():
    engines = "{'ray', 'dask', 'distributed', 'fsspec', 'pyarrow'}"
    assert run(f"import sys, tensordict_memmap; print(sorted({engines} & sys.modules.keys()))") == "[]"


@pytest.mark.parametrize("name", ["ray", "dask"])
def test_a_missing_engine_is_an_error_with_the_command_to_install_it(name):
    code = f"""
import sys
sys.modules[{name!r}] = None
try:
    import tensordict_memmap.data_engines.{name}
except ImportError as error:
    print(error)
"""
    assert f'pip install "tensordict-memmap[{name}]"' in run(code)
