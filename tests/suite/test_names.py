"""The import name tensordict: lazy, complete, clear about missing packages, and never beside the reference."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import tensordict
import tensordict_core
from tensordict._serve.aliases import MODULES, RELEASE
from tensordict._serve.names import OWNERS, RENAMED, SUBMODULES

ALL = [
    (module, owner, name)
    for module, owners in OWNERS.items()
    for owner, names in owners.items()
    for name in names.split()
]


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new process."""
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


def error_of(code: str) -> str:
    """Returns the last line that a new process prints before it fails."""
    ran = fresh(code)
    assert ran.returncode != 0, ran.stdout
    return ran.stderr.strip().splitlines()[-1]


def test_importing_the_name_loads_neither_torch_nor_a_satellite():
    ran = fresh(
        "import sys, tensordict, tensordict.nn, tensordict.utils, tensordict.memmap, tensordict.tensorclass\n"
        "loaded = {'torch', 'numba', 'tensordict_core', 'tensordict_memmap', 'tensordict_nn'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(("module", "owner", "name"), ALL, ids=lambda x: x)
def test_every_name_is_the_object_of_its_owner_or_does_not_exist(module, owner, name):
    here = importlib.import_module(module)
    try:
        home = importlib.import_module(owner)
    except ModuleNotFoundError as error:
        assert error.name == owner
        home = None
    if hasattr(home, name):
        assert getattr(here, name) is getattr(home, name)
        assert name in dir(here) and name in here.__all__
    else:
        assert not hasattr(here, name)
        assert name not in dir(here) and name not in here.__all__


def test_containers_are_served():
    assert tensordict.TensorDict is tensordict_core.TensorDict
    assert {"TensorDict", "LazyStackedTensorDict", "NonTensorData", "MemoryMappedTensor"} <= set(tensordict.__all__)


def seen_by_type_checkers(module: str) -> set[str]:
    """Returns the names that a module of the suite imports for type checkers only."""
    tree = ast.parse(Path(importlib.import_module(module).__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen: set[str] = set()
    for node in block.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            seen |= set(importlib.import_module(node.module).__all__)
        elif isinstance(node, ast.ImportFrom):
            seen |= {alias.asname for alias in node.names}
        elif isinstance(node, ast.Assign):
            seen |= {target.id for target in node.targets}
    return {name for name in seen if not name.startswith("__")}


@pytest.mark.parametrize("module", OWNERS)
def test_type_checkers_see_the_names_of_run_time(module):
    assert seen_by_type_checkers(module) == set(importlib.import_module(module).__all__)


@pytest.mark.parametrize(
    "package",
    [
        *("tensordict_core", "tensordict_memmap", "tensordict_nn", "tensordict_class", "tensordict_store"),
        *("tensordict_core.extension", "tensordict_core.testing", "tensordict_nn.distributions"),
    ],
)
def test_dir_of_a_package_lists_its_public_names_only(package):
    module = importlib.import_module(package)
    assert set(dir(module)) == set(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("module", OWNERS)
def test_dir_of_the_suite_lists_public_names_and_submodules_only(module):
    found = importlib.import_module(module)
    assert dir(found) == sorted({*found.__all__, *SUBMODULES.get(module, ())})


def test_a_star_import_takes_the_public_names_only():
    taken: dict[str, object] = {}
    exec("from tensordict import *", taken)
    assert set(taken) - {"__builtins__"} == set(tensordict.__all__)


@pytest.mark.parametrize(
    "first", ["import tensordict.{0}", "from tensordict import {0}", "from tensordict.{0} import {1}"]
)
@pytest.mark.parametrize(("both", "other"), [("tensorclass", "NonTensorData"), ("memmap", "MemoryMappedTensor")])
def test_a_function_and_a_submodule_share_a_name_in_any_order(first, both, other):
    ran = fresh(
        f"{first.format(both, other)}\n"
        f"import tensordict.{both}\n"
        f"from tensordict.{both} import {other}\n"
        f"from tensordict import {both}\n"
        "import sys\n"
        f"assert callable({both}) and tensordict.{both} is {both}\n"
        f"assert sys.modules['tensordict.{both}'].{other} is {other}"
    )
    assert ran.returncode == 0, ran.stderr


def test_submodules_are_attributes_without_an_import():
    ran = fresh(
        "import tensordict\n"
        "assert tensordict.nn.distributions.__name__ == 'tensordict.nn.distributions'\n"
        "assert tensordict.prototype.fx.__name__ == 'tensordict.prototype.fx'\n"
        "assert tensordict.base.TensorDictBase is tensordict.TensorDictBase\n"
        "assert tensordict.utils.__name__ == 'tensordict.utils' and callable(tensordict.memmap)"
    )
    assert ran.returncode == 0, ran.stderr


def test_every_module_is_in_the_table_and_the_reverse():
    found = {"tensordict"} | {m.name for m in pkgutil.walk_packages(tensordict.__path__, "tensordict.")}
    private = {m for m in found if "._" in m} - set(MODULES)
    assert private == {"tensordict._serve", *(f"tensordict._serve.{name}" for name in ("aliases", "lazy", "names"))}
    assert found - private == {*OWNERS, *MODULES}
    assert all(f"{module}.{name}" in OWNERS for module, names in SUBMODULES.items() for name in names)


def test_deprecated_names_are_the_current_objects():
    for module, names in RENAMED.items():
        here = importlib.import_module(module)
        for old, new in names.items():
            assert getattr(here, old) is getattr(here, new)
    assert tensordict.prototype.tensorclass is tensordict.tensorclass


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tensordict' has no attribute 'no_such_name'"):
        tensordict.no_such_name  # noqa: B018 (the access is the test)


@pytest.mark.parametrize(
    ("package", "wanted"),
    [
        ("tensordict_memmap", "tensordict.MemoryMappedTensor"),
        ("tensordict_nn", "tensordict.nn.TensorDictModule"),
        ("tensordict_class", "tensordict.tensorclass"),
        ("tensordict_store", "tensordict.PersistentTensorDict"),
    ],
)
def test_a_missing_satellite_is_an_import_error_that_names_the_command(package, wanted):
    module, _, name = wanted.rpartition(".")
    distribution = package.replace("_", "-")
    blocked = f"import sys; sys.modules[{package!r}] = None\n"
    assert error_of(f"{blocked}from {module} import {name}").endswith(
        f"{wanted} needs {distribution}: pip install {distribution}"
    )
    ran = fresh(
        f"{blocked}import tensordict, {module}\n"
        "assert 'TensorDict' in dir(tensordict)\n"
        f"assert {name!r} not in dir({module})"
    )
    assert ran.returncode == 0, ran.stderr


def test_a_broken_satellite_shows_its_own_error(tmp_path):
    (tmp_path / "tensordict_nn.py").write_text("import a_module_that_does_not_exist")
    last = error_of(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom tensordict.nn import TensorDictModule")
    assert last == "ModuleNotFoundError: No module named 'a_module_that_does_not_exist'"


def test_it_refuses_to_share_the_name_with_the_reference(tmp_path):
    info = tmp_path / "tensordict-0.15.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensordict\nVersion: 0.15.3\n")
    last = error_of(f"import sys; sys.path.append({str(tmp_path)!r})\nimport tensordict")
    assert last.startswith(
        "ImportError: tensordict-suite and tensordict 0.15.3 both provide the import name `tensordict`"
    )
    assert "`pip uninstall tensordict`" in last


def test_the_version_is_the_release_that_the_suite_replaces():
    assert tensordict.__version__ == RELEASE == "0.15.3"
    assert version("tensordict-suite") != RELEASE
    with pytest.raises(PackageNotFoundError):
        version("tensordict")


def test_it_is_typed():
    assert (Path(tensordict.__file__).parent / "py.typed").exists()
