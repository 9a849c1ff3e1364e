"""Core alone works without satellites and numba, and its errors name the package to install."""

from __future__ import annotations

import subprocess
import sys

SATELLITES = ("tensordict_memmap", "tensordict_nn", "tensordict_class", "tensordict_store", "tensordict")
# `None` in sys.modules is how Python itself says that a module cannot be imported.
BLOCK = f"import sys\nfor name in {(*SATELLITES, 'numba', 'llvmlite', 'tqdm')!r}: sys.modules[name] = None\n"

USE_CONTAINERS = """
import torch
from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack, stack

td = TensorDict({"a": torch.arange(6.0).reshape(3, 2), "b": {"c": torch.ones(3)}, "name": NonTensorData("x")}, [3])
td["b", "d"] = td["a"] + 1
assert td["name"] == "x"
assert td[0]["b", "d"].tolist() == [1.0, 2.0]
assert (stack([td, td])[1] == td).all()
lazy = lazy_stack([td[:1], td[1:2]])
assert isinstance(lazy, LazyStackedTensorDict) and lazy.batch_size == (2, 1)
assert (td + 1)["b", "c"].tolist() == [2.0, 2.0, 2.0]
assert td.apply(torch.neg).to_dict()["b"]["c"].tolist() == [-1.0, -1.0, -1.0]
"""


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, where nothing has been imported yet and warnings are errors."""
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


def test_containers_work_with_satellites_and_numba_blocked():
    ran = fresh(BLOCK + USE_CONTAINERS)
    assert ran.returncode == 0, ran.stderr


def test_the_block_is_real():
    """Otherwise the test above would prove nothing."""
    assert "ModuleNotFoundError" in fresh(BLOCK + "import numba").stderr


def test_importing_core_loads_nothing_but_itself_on_top_of_torch_and_numpy():
    ran = fresh(
        "import sys, numpy, torch\n"
        "before = set(sys.modules)\n"
        "import tensordict_core\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names\n"
        "print(*sorted(new - {'torch', 'numpy'}))"
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["tensordict_core"]


def test_the_import_pauses_the_collector_and_leaves_it_as_it_was():
    ran = fresh(
        "import gc, torch\n"
        "full = []\n"
        "gc.callbacks.append(lambda phase, info: full.append(1) if info['generation'] == 2 else None)\n"
        "import tensordict_core\n"
        "print(gc.isenabled(), full)\n"
    )
    assert ran.stdout.split() == ["True", "[]"], ran.stderr
    assert fresh("import gc; gc.disable(); import tensordict_core; print(gc.isenabled())").stdout.split() == ["False"]


def test_using_core_loads_no_satellite_and_no_numba():
    ran = fresh(USE_CONTAINERS + f"import sys\nprint(*sorted({{*{SATELLITES!r}, 'numba'}} & set(sys.modules)))")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == []


def test_memmap_without_its_satellite_names_the_command():
    ran = fresh(
        BLOCK + "import torch\nfrom tensordict_core import TensorDict\nTensorDict({'a': torch.ones(2)}, [2]).memmap()"
    )
    assert ran.returncode != 0
    last = ran.stderr.strip().splitlines()[-1]
    assert last == "ImportError: TensorDict.memmap needs tensordict-memmap: pip install tensordict-memmap"


def test_a_satellite_that_is_installed_but_broken_shows_its_own_error(tmp_path):
    (tmp_path / "tensordict_memmap.py").write_text("import a_module_that_does_not_exist")
    ran = fresh(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch\nfrom tensordict_core import TensorDict\nTensorDict({'a': torch.ones(2)}, [2]).memmap()"
    )
    assert ran.returncode != 0
    last = ran.stderr.strip().splitlines()[-1]
    assert last == "ModuleNotFoundError: No module named 'a_module_that_does_not_exist'"
