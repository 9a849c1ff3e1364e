"""Tensorclasses saved by scripts: a script that defines the class loads it, another one is warned."""

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


def test_a_session_that_defines_the_class_twice_loads_instances_of_the_latest(tmp_path):
    run(tmp_path, IMPORTS, DEFINED, SAVES)
    latest = "\nassert type(p) is Point and p is not None\n"
    loaded = run(tmp_path, IMPORTS, DEFINED, "first = Point\n", DEFINED, LOADS, latest, "assert type(p) is not first")
    assert loaded.stdout.startswith("Point") and loaded.stderr == ""


def test_an_interactive_session_that_defines_the_class_loads_the_save_of_a_script(tmp_path):
    """A notebook has no file and no module but ``__main__``, as a prompt that reads from its input."""
    run(tmp_path, IMPORTS, DEFINED, SAVES)
    cells = "".join((IMPORTS, DEFINED, "\n", LOADS))
    command = [sys.executable, "-i", "-q", "-", str(tmp_path)]
    loaded = subprocess.run(command, input=cells, check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == "Point [0.0, 1.0, 2.0] here" and "Warning" not in loaded.stderr


def test_a_class_that_moved_into_a_module_is_registered_under_its_old_name(tmp_path):
    run(tmp_path, IMPORTS, DEFINED, SAVES)
    (tmp_path / "points.py").write_text(IMPORTS + DEFINED)
    moved = "sys.path.insert(0, sys.argv[1])\nfrom points import Point\n"
    known = "from tensordict_core.extension import register_type\nregister_type(Point, name='Point')\n"
    assert run(tmp_path, IMPORTS, moved, known, LOADS).stdout.strip() == "Point [0.0, 1.0, 2.0] here"
