"""Importing the package imports little: public names import their modules when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import tensordict_memmap
from tensordict_core import NonTensorData, TensorDict


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_the_import_does_not_load_dependencies_of_saves_and_loads():
    code = (
        "import sys, tensordict_memmap\nprint(*[name for name in sys.modules if name.startswith('tensordict_memmap.')])"
    )
    rooms = {name.split(".")[1] for name in run(code).split()}
    assert rooms.isdisjoint({"saving", "loading", "remote", "checkpoint", "cli", "dataset", "dcp", "distributed"})


def test_a_save_and_a_load_import_neither_checkpoints_nor_datasets(tmp_path):
    code = (
        "import sys, torch\nfrom tensordict_core import TensorDict\n"
        f"TensorDict(a=torch.zeros(2)).memmap({str(tmp_path / 'x')!r})\nTensorDict.load({str(tmp_path / 'x')!r})\n"
        "print(*[name for name in sys.modules if name.startswith('tensordict_memmap.')])"
    )
    rooms = {name.split(".")[1] for name in run(code).split()}
    assert rooms.isdisjoint({"checkpoint", "cli", "dataset", "dcp", "distributed"})


@pytest.mark.parametrize("name", tensordict_memmap.__all__)
def test_each_public_name_is_listed_and_found(name):
    found = getattr(tensordict_memmap, name)
    assert found.__name__ == {"MemmapTensor": "MemoryMappedTensor", "load": "load_memmap"}.get(name, name)
    assert name in dir(tensordict_memmap)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tensordict_memmap.nothing  # noqa: B018 (the access is the test)


def test_a_value_that_changes_is_written_back_in_a_process_that_only_loads(tmp_path):
    TensorDict({"a": torch.zeros(2), "b": NonTensorData("old")}).memmap(tmp_path / "x")
    code = (
        "from tensordict_core import NonTensorData, TensorDict\n"
        f"TensorDict.load_memmap({str(tmp_path / 'x')!r}).update_({{'b': NonTensorData('new')}})"
    )
    run(code)
    assert TensorDict.load_memmap(tmp_path / "x")["b"] == "new"
