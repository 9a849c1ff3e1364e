"""Distributions: each builds a wheel and an sdist with the right metadata and files."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORT_NAMES = {
    "tensordict-core": "tensordict_core",
    "tensordict-memmap": "tensordict_memmap",
    "tensordict-nn": "tensordict_nn",
    "tensordict-class": "tensordict_class",
    "tensordict-store": "tensordict_store",
    "tensordict-suite": "tensordict",
}
each = pytest.mark.parametrize("name", IMPORT_NAMES)


def build(folder: Path, out: Path, *options: str) -> None:
    """Builds with the hatchling of this environment, so that nothing is downloaded."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), *options]
    subprocess.run(
        command, cwd=folder, check=True, capture_output=True, env={"SOURCE_DATE_EPOCH": "1700000000"} | os.environ
    )


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of every distribution: those of the session build, or built here."""
    if "DISTRIBUTIONS" in os.environ:
        return Path(os.environ["DISTRIBUTIONS"]).resolve()
    out = tmp_path_factory.mktemp("dist")
    for name in IMPORT_NAMES:
        build(ROOT / "packages" / name, out)
    return out


def wheel_of(dist: Path, name: str) -> Path:
    [wheel] = dist.glob(f"{name.replace('-', '_')}-*.whl")
    return wheel


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [path] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(path).decode())


def version_of(name: str) -> str:
    """The version that the source states, where `tools/set_version.py` writes it."""
    source = ROOT / "packages" / name / "src" / IMPORT_NAMES[name]
    place, variable = ("_serve/aliases.py", "SUITE_") if name == "tensordict-suite" else ("__init__.py", "__")
    [version] = re.findall(rf'^{variable}version(?:__)? = "(.*)"$', (source / place).read_text(), re.M | re.I)
    return version


def project_of(name: str) -> dict[str, object]:
    return tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]


@each
def test_a_wheel_holds_its_package_and_nothing_else(dist, name):
    with zipfile.ZipFile(wheel_of(dist, name)) as archive:
        files = archive.namelist()
    source = ROOT / "packages" / name / "src"
    tops = {path.partition("/")[0] for path in files if ".dist-info/" not in path}
    assert tops == {IMPORT_NAMES[name]} | ({"tensordict_memmap_cli"} if name == "tensordict-memmap" else set())
    assert all(f"{top}/py.typed" in files for top in tops)
    modules = {str(path.relative_to(source)) for path in source.rglob("*.py")}
    assert modules == {path for path in files if path.endswith(".py")}


@each
def test_a_wheel_is_pure_python(dist, name):
    assert wheel_of(dist, name).name.endswith("-py3-none-any.whl")


@each
def test_the_metadata_equals_the_declarations_of_the_package(dist, name):
    metadata, project = metadata_of(wheel_of(dist, name)), project_of(name)
    assert metadata["Name"] == name
    assert metadata["Version"] == version_of(name) and "version" not in project
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Summary"]
    required = metadata.get_all("Requires-Dist")
    plain = {r.split(";")[0].strip().split(">")[0].split("<")[0] for r in required if "extra ==" not in r}
    assert plain == {r.split(">")[0].split("<")[0] for r in project["dependencies"]}
    assert set(metadata.get_all("Provides-Extra") or []) == set(project.get("optional-dependencies", {}))


@each
def test_the_version_in_the_code_is_that_of_the_metadata(name):
    if name == "tensordict-suite":  # it answers with the release of the reference that it stands in for
        return
    assert importlib.import_module(IMPORT_NAMES[name]).__version__ == version_of(name)


def test_all_distributions_have_one_version_that_the_changelog_names():
    [version] = {version_of(name) for name in IMPORT_NAMES}
    assert version in next(
        line for line in (ROOT / "docs" / "changelog.md").read_text().splitlines() if line.startswith("## ")
    )


@each
def test_distributions_depend_on_the_minor_version_of_each_other(name):
    project = project_of(name)
    required = list(chain(project["dependencies"], *project.get("optional-dependencies", {}).values()))
    major, minor, _ = version_of(name).split(".")
    ours = [one for one in required if one.startswith("tensordict-") and not one.startswith("tensordict-suite[")]
    assert all(one.endswith(f">={major}.{minor},<{major}.{int(minor) + 1}") for one in ours)
    assert bool(ours) == (name != "tensordict-core")


def test_setting_the_version_changes_it_everywhere(tmp_path):
    """In a copy: the version of each distribution, and the bounds that they put on each other."""
    for folder in (ROOT / "packages").iterdir():
        for path in (
            folder / "pyproject.toml",
            *folder.glob("src/*/__init__.py"),
            *folder.glob("src/*/_serve/aliases.py"),
        ):
            if path.exists():
                copy = tmp_path / "packages" / path.relative_to(ROOT / "packages")
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(path.read_text())
    command = [sys.executable, str(ROOT / "tools" / "set_version.py"), "1.7.2", "--root", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    text = "".join(path.read_text() for path in tmp_path.rglob("*.*"))
    assert text.count('ersion__ = "1.7.2"') == 5 and text.count('SUITE_VERSION = "1.7.2"') == 1
    assert text.count(">=1.7,<1.8") == 9 and "<0.2" not in text
    refused = subprocess.run([*command[:2], "one", *command[3:]], capture_output=True, text=True)
    assert refused.returncode == 2 and "0.2.0" in refused.stderr


@each
def test_the_readme_is_the_description_and_shows_code(dist, name):
    metadata = metadata_of(wheel_of(dist, name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    assert text.startswith(f"# {name}\n")
    [install] = [line for line in text.splitlines() if line.startswith("pip install ")]
    assert f"./packages/{name}" in install and "```python" in text  # nothing is on PyPI yet: the line is for a clone


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("tensordict-memmap", {"MemoryMappedTensor"}),
        ("tensordict-nn", {"TensorDictParams"}),
        ("tensordict-store", {"LazyStackedTensorDictStore", "PersistentTensorDict", "TensorDictStore"}),
    ],
)
def test_a_satellite_announces_its_types(dist, name, kinds):
    with zipfile.ZipFile(wheel_of(dist, name)) as archive:
        [path] = [n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt")]
        lines = archive.read(path).decode().split("\n")
    start = lines.index("[tensordict_core.types]") + 1
    assert {line.partition(" = ")[0] for line in lines[start:] if line} == kinds


@each
def test_an_sdist_builds_the_same_wheel(dist, name, tmp_path):
    [sdist] = dist.glob(f"{name.replace('-', '_')}-*.tar.gz")
    with tarfile.open(sdist) as archive:
        # the first releases of Python 3.11 have no filters, and later ones ask for one
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    [folder] = tmp_path.iterdir()
    assert {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "src"} <= {path.name for path in folder.iterdir()}
    build(folder, tmp_path / "out", "-t", "wheel")
    assert wheel_of(tmp_path / "out", name).read_bytes() == wheel_of(dist, name).read_bytes()


@pytest.mark.long
@each
def test_a_wheel_installs_with_its_declared_dependencies_only(dist, name, tmp_path):
    """In an environment of its own, from the wheels of this build and the pinned set of everything else."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
    install = ["-m", "pip", "install", "-q", "--find-links", str(dist), "-c", str(ROOT / "constraints.txt")]
    subprocess.run([python, *install, str(wheel_of(dist, name))], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    subprocess.run([python, "-W", "error", "-c", f"import {IMPORT_NAMES[name]}"], check=True, cwd=tmp_path)
