"""Import rules, checked on the source: permitted distributions, and no private names of other distributions."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"
CORE_INTERFACE = {"tensordict_core", "tensordict_core.extension"}
STANDARD = sys.stdlib_module_names | {"annotationlib"}
"""The modules of Python, with those of later versions."""

# import name -> modules of other distributions that it may import. A name with a dot stands for itself alone.
MAY_IMPORT: dict[str, set[str]] = {
    "tensordict_core": {"torch", "numpy", "tqdm"},
    "tensordict_memmap": {
        "torch",
        "numpy",
        "numba",
        "llvmlite",
        "orjson",
        "xxhash",
        "fsspec",
        "tqdm",
        "ray",
        "dask",
    }
    | CORE_INTERFACE,
    "tensordict_nn": {"torch", "numpy", "cloudpickle"} | CORE_INTERFACE,
    "tensordict_class": {"torch", "numpy", "pydantic"} | CORE_INTERFACE,
    "tensordict_store": {"torch", "numpy", "h5py", "zarr", "redis", "pyarrow", "pandas", "streaming", "ucxx"}
    | CORE_INTERFACE,
    "tensordict": {
        "tensordict_core",
        "tensordict_core.compat",  # what below the public names programs import
        "tensordict_core.extension",
        "tensordict_memmap",
        "tensordict_nn",
        "tensordict_nn.distributions",
        "tensordict_class",
        "tensordict_store",
    },
}
# The suite that container authors inherit is the one part of core that needs test tools; nothing else imports it.
TEST_TOOLS = {"pytest", "hypothesis"}
OURS = set(MAY_IMPORT)
# Declaring the one brings the other: core stands on torch and numpy, numba's intrinsics are written with its llvmlite.
# Distributions whose import name is another one.
IMPORTED_AS = {"mosaicml_streaming": "streaming"}
# Its distribution has another name for each release of CUDA, so no extra can install it; the error names them.
CHOSEN_BY_USERS = {"ucxx"}
COMES_WITH = {"tensordict_core": {"torch", "numpy"}, "numba": {"llvmlite"}}
# Another import package of the same distribution: the commands, which start without torch.
BESIDE = {"tensordict_memmap": {"tensordict_memmap_cli"}}
FOLDER = {name: PACKAGES / name.replace("_", "-") for name in OURS - {"tensordict"}} | {
    "tensordict": PACKAGES / "tensordict-suite"
}


def imported(tree: ast.AST) -> Iterator[tuple[int, str, list[str]]]:
    """Every import with its line, module and names, in functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, []
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or "", [alias.name for alias in node.names]
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value), []


def reached_into(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Every private attribute that is read off an imported module of another distribution: ``core._keys``."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    modules = {
        bound for bound, name in aliases.items() if name.partition(".")[0] in OURS - {package} and name.islower()
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            path = ast.unparse(node.value)
            if path.partition(".")[0] in modules:
                yield node.lineno, f"{path}.{node.attr}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def is_module(package: str, name: str) -> bool:
    """Whether a name that is imported from a package is one of its files, and not something that it exports."""
    source = FOLDER[package] / "src"
    path = source / name.replace(".", "/")
    if not (path.is_dir() or path.with_suffix(".py").exists()):
        return False
    parent = ast.parse((path.parent / "__init__.py").read_text())
    exported = {a.asname or a.name for node in ast.walk(parent) if isinstance(node, ast.ImportFrom) for a in node.names}
    return path.name not in exported


def violations(source: str, package: str, *, testing: bool = False) -> list[str]:
    """What a file of ``package`` imports against the rule, a line each."""
    tree = ast.parse(source)
    found = []
    allowed = MAY_IMPORT[package] | (TEST_TOOLS if testing else set())
    for line, module, names in imported(tree):
        top = module.partition(".")[0]
        if top == package or top in BESIDE.get(package, ()) or top in STANDARD:
            continue
        if top not in allowed:
            found.append(f"line {line}: {package} may not import {top}")
        elif top in OURS:
            private = [part for part in (*module.split("."), *names) if is_private(part)]
            modules = {module} | {f"{module}.{name}" for name in names if is_module(top, f"{module}.{name}")}
            if private:
                found.append(f"line {line}: {'.'.join(private)} is private to {top}")
            else:
                found += [f"line {line}: {m} is no part of the interface of {top}" for m in sorted(modules - allowed)]
    found += [
        f"line {line}: {path} is private to {path.partition('.')[0]}" for line, path in reached_into(tree, package)
    ]
    return found


@pytest.mark.parametrize("package", sorted(OURS))
def test_no_file_imports_a_forbidden_package(package):
    files = sorted(FOLDER[package].glob("src/**/*.py"))
    assert files
    bad = [
        f"{path.relative_to(PACKAGES)}, {what}"
        for path in files
        for what in violations(path.read_text(), package, testing="tensordict_core/testing" in path.as_posix())
    ]
    assert bad == []


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("tensordict_core", "import tensordict_memmap"),
        ("tensordict_core", "def f():\n    from tensordict_nn import from_module"),
        ("tensordict_core", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numba"),
        ("tensordict_core", "import importlib\nimportlib.import_module('tensordict_class')"),
        ("tensordict_core", "import orjson"),
        ("tensordict_core", "import pytest"),
        ("tensordict_memmap", "from tensordict_class import tensorclass"),
        ("tensordict_memmap", "from tensordict_core.base.keys import unravel_key"),
        ("tensordict_memmap", "import tensordict_core.base.keys"),
        ("tensordict_memmap", "from tensordict_core import _keys"),
        ("tensordict_memmap", "from tensordict_core.extension import _secret"),
        ("tensordict_memmap", "from tensordict_core.containers.lazy import LazyStackedTensorDict"),
        ("tensordict_memmap", "from tensordict_core import testing"),
        ("tensordict_nn", "import numba"),
        ("tensordict_nn", "import tensordict_core as core\ncore._keys.unravel_key('a')"),
        ("tensordict_nn", "import tensordict_core\ntensordict_core.extension._secret()"),
        ("tensordict_nn", "from tensordict_core import extension\nextension._secret()"),
        ("tensordict_class", "from tensordict import TensorDict"),
        ("tensordict", "import torch"),
        ("tensordict", "from tensordict_core.base.keys import unravel_key"),
    ],
)
def test_the_scan_finds_an_import_against_the_rule(package, source):
    assert len(violations(source, package)) == 1


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("tensordict_core", "from tensordict_core.base.keys import unravel_key"),
        ("tensordict_core", "from ._keys import unravel_key"),
        ("tensordict_core", "import os, numpy as np\nfrom torch._C import _functorch"),
        ("tensordict_memmap", "from tensordict_core import TensorDict\nfrom tensordict_core.extension import registry"),
        ("tensordict_memmap", "import tensordict_core as core\ncore.__name__, core.TensorDict"),
        ("tensordict_nn", "from tensordict_core import TensorDict\nTensorDict({})._keys()"),
        ("tensordict", "from tensordict_nn.distributions import Delta"),
    ],
)
def test_the_scan_allows_permitted_imports(package, source):
    assert violations(source, package) == []


@pytest.mark.parametrize("package", sorted(OURS))
def test_permitted_imports_equal_declared_dependencies(package):
    """The rule and the metadata say the same: nothing is used undeclared, and nothing is declared unused."""
    project = tomllib.loads((FOLDER[package] / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    distributions = {
        "".join(c if c.isalnum() or c in "-_" else " " for c in line).split()[0]
        for line in project["dependencies"] + extras
    }
    declared = {name.replace("-", "_") for name in distributions} - {"tensordict_suite"}
    declared = {IMPORTED_AS.get(name, name) for name in declared}
    used = {name for name in MAY_IMPORT[package] if "." not in name} | (TEST_TOOLS & declared)
    brought = {name for first in declared for name in COMES_WITH.get(first, set())}
    assert used - brought - CHOSEN_BY_USERS <= declared <= used
