"""Strided nested tensors as memory-mapped tensors: their components lie in the file one after the other."""

from __future__ import annotations

import copy
import os
import pickle

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemoryMappedTensor, load_memmap, save

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def nested(transposed=False):
    made = torch.nested.nested_tensor([torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3) + 10])
    return made.transpose(1, 2) if transposed else made


def same(first, second):
    assert first.is_nested and second.is_nested and first.dtype == second.dtype
    parts = list(zip(first.unbind(), second.unbind(), strict=True))
    return all(torch.equal(a, b) for a, b in parts)


@pytest.mark.parametrize("filename", [None, "x.memmap"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_nested_tensor_is_copied_component_by_component(filename, transposed):
    source = nested(transposed)
    made = MemoryMappedTensor.from_tensor(source, filename=filename)
    assert type(made) is MemoryMappedTensor and same(made, source)
    assert same(MemoryMappedTensor(source), source)
    source[0].zero_()
    assert same(made, nested(transposed))
    if filename is not None:
        assert made.filename == os.path.abspath(filename)
        flat = torch.cat([part.reshape(-1) for part in made.unbind()])
        assert MemoryMappedTensor.from_filename(filename, torch.float32, (18,)).tolist() == flat.tolist()
    assert [type(part) for part in made.unbind()] == [MemoryMappedTensor] * 2


def test_writes_to_a_component_reach_the_file():
    made = MemoryMappedTensor.from_tensor(nested(), filename="x.memmap")
    made[1].fill_(7)
    made[0][1, 2] = -1
    again = MemoryMappedTensor.from_filename("x.memmap", torch.float32, nested()._nested_tensor_size())
    assert same(again, made) and again[0][1, 2] == -1 and again.unbind()[1].unique().tolist() == [7]
    assert again[1].offset == 24 and again.parent_shape == (2,)
    part = MemoryMappedTensor.from_filename("x.memmap", torch.float32, nested()._nested_tensor_size(), 1)
    assert part.shape == (4, 3)


def test_files_are_created_and_replaced_as_those_of_other_tensors():
    made = MemoryMappedTensor.from_tensor(nested(), filename="x.memmap")
    assert MemoryMappedTensor.from_tensor(made, filename="x.memmap") is made
    copied = MemoryMappedTensor.from_tensor(made)
    assert copied is not made and same(copied, made)
    copied[0].fill_(-1)
    assert same(made, nested())
    with pytest.raises(RuntimeError, match="existsok=False"):
        MemoryMappedTensor.from_tensor(nested(), filename="x.memmap")
    with pytest.raises(RuntimeError, match="copy_existing=True"):
        MemoryMappedTensor.from_tensor(made, filename="y.memmap")
    assert same(MemoryMappedTensor.from_tensor(made, filename="y.memmap", copy_existing=True), made)
    zeros = MemoryMappedTensor.from_tensor(nested(), copy_data=False)
    assert not any(part.any() for part in zeros.unbind())
    with pytest.raises(ValueError, match="does not broadcast"):
        MemoryMappedTensor.from_tensor(nested(), shape=(2, 3))


def test_constructors_take_the_shapes_of_the_components():
    rows = torch.tensor([[2, 3], [4, 3]])
    for made, value in (
        (MemoryMappedTensor.zeros(rows), 0),
        (MemoryMappedTensor.ones(shape=rows), 1),
        (MemoryMappedTensor.full(rows, fill_value=5.0), 5),
        (MemoryMappedTensor.full_like(nested(), 3), 3),
        (MemoryMappedTensor.empty_like(nested()), 0),
    ):
        assert made._nested_tensor_size().tolist() == rows.tolist()
        assert all((part == value).all() for part in made.unbind())


@pytest.mark.parametrize("components", [[], [torch.ones(0), torch.ones(0)], [torch.ones(0, 2), torch.ones(3, 2)]])
def test_nested_tensors_without_components_or_elements(components):
    source = torch.nested.nested_tensor(components)
    made = MemoryMappedTensor.from_tensor(source, filename="x.memmap")
    assert same(made, source) and same(pickle.loads(pickle.dumps(made)), source)


@pytest.mark.parametrize("filename", [None, "x.memmap"])
def test_a_pickle_holds_the_file_or_the_values(filename):
    made = MemoryMappedTensor.from_tensor(nested(), filename=filename)
    found = pickle.loads(pickle.dumps(made))
    assert type(found) is MemoryMappedTensor and same(found, nested())
    found[0].zero_()
    assert same(made, nested()) == (filename is None)  # else both map the file
    private = (
        MemoryMappedTensor.from_filename("x.memmap", torch.float32, nested()._nested_tensor_size(), mode="r")
        if filename
        else made
    )
    private[1].fill_(3)
    assert same(pickle.loads(pickle.dumps(private)), private)
    assert type(copy.deepcopy(made)) is torch.Tensor


def test_a_tensordict_of_them_is_saved_and_mapped():
    td = TensorDict({"a": MemoryMappedTensor.from_tensor(nested(), filename="x.memmap"), "b": torch.ones(2)})
    with pytest.raises(RuntimeError, match="copy_existing=True"):
        td.memmap("tree")
    save(td, "x.safetensors")
    for made in (td.memmap("tree", copy_existing=True), load_memmap("tree"), load_memmap("x.safetensors"), td.memmap()):
        assert same(made["a"], nested())
    assert same(td.clone()["a"], nested())


def test_a_jagged_tensor_is_refused_with_the_way_to_store_it():
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for call in (MemoryMappedTensor.from_tensor, MemoryMappedTensor.zeros_like):
        with pytest.raises(TypeError, match="put it into a tensordict"):
            call(jagged)


def test_a_storage_is_mapped_as_a_nested_tensor():
    storage, shape = torch.arange(18.0).untyped_storage(), torch.tensor([[2, 3], [4, 3]])
    made = MemoryMappedTensor.from_storage(storage, dtype=torch.float32, shape=shape)
    assert [part.flatten().tolist() for part in made.unbind(0)] == [[*range(6)], [*range(6, 18)]]
    row = MemoryMappedTensor.from_storage(storage, dtype=torch.float32, shape=shape, index=0)
    assert row.flatten().tolist() == [*range(6)]
    with pytest.raises(ValueError, match="smaller shape"):
        MemoryMappedTensor.from_storage(storage, dtype=torch.float32, shape=shape + 2)
