"""A tensorclass that a script saves: another script that defines it again loads it, one that does not is warned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

IMPORTS = """
import sys, torch
from tensordict import TensorClass, TensorDict
"""
DEFINED = """
class Point(TensorClass):
    x: torch.Tensor
    label: str = "here"
"""
SAVES = """
Point(torch.arange(3.0), batch_size=[3]).memmap(sys.argv[1])
"""
LOADS = """
p = TensorDict.load_memmap(sys.argv[1])
print(type(p).__name__, p.get("x").tolist(), p.to_dict()["label"])
"""


def run(folder: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "".join(parts), str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True)


def test_a_script_that_defines_the_class_again_loads_instances(tmp_path):
    run(tmp_path, IMPORTS, DEFINED, SAVES)
    loaded = run(tmp_path, IMPORTS, DEFINED, LOADS)
    assert (loaded.stdout.strip(), loaded.stderr) == ("Point [0.0, 1.0, 2.0] here", "")


def test_a_script_without_the_class_loads_a_tensordict_and_is_warned(tmp_path):
    run(tmp_path, IMPORTS, DEFINED, SAVES)
    loaded = run(tmp_path, IMPORTS, LOADS)
    assert loaded.stdout.strip() == "TensorDict [0.0, 1.0, 2.0] here"
    assert "UserWarning" in loaded.stderr and "Point" in loaded.stderr
