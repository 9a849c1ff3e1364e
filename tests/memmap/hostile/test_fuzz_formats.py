"""Fuzzing: thousands of mutated saves of every format load or raise a documented error, within time and memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensordict_memmap.engine import syscalls

pytestmark = pytest.mark.skipif(not syscalls.POSIX, reason="workers are limited")

RUNS = [
    pytest.param(900, 1, id="900 inputs"),
    pytest.param(100_000, 2, id="100,000 inputs", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("inputs", "workers"), RUNS)
def test_no_mutated_save_crashes_hangs_or_takes_memory(inputs, workers):
    command = [sys.executable, str(Path(__file__).parent / "fuzz_formats.py")]
    options = ["--inputs", str(inputs), "--workers", str(workers)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-3000:]
    counts = [int(number) for number in re.findall(r"^[a-z]+: ([0-9]+) inputs", done.stdout, re.MULTILINE)]
    assert len(counts) == 9 and min(counts) > 0 and sum(counts) == inputs
    # inputs that load, and inputs that are refused, of every format
    assert done.stdout.count("'loads'") == done.stdout.count("'ValueError'") == 9
